package policy

// Nearest returns the word that a mistyped one most likely stands for, "" if
// none is near.
func Nearest(typed string, words []string) string {
	best, distance := "", len(typed)/3+2
	for _, w := range words {
		if d := edits(typed, w); d < distance {
			best, distance = w, d
		}
	}
	return best
}

// edits is the Levenshtein distance of two words, in bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// Hint is the end of an error about an unknown word: what was probably meant,
// and what there is.
func Hint(typed string, words []string) string {
	list := ""
	for i, w := range words {
		if i > 0 {
			list += ", "
		}
		list += w
	}
	if near := Nearest(typed, words); near != "" {
		return "did you mean " + near + "? There are " + list
	}
	return "there are " + list
}
