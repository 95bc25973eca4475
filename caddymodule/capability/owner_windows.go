package capability

import "os"

// private and trustedOwner cannot be told from a file's mode on Windows. The
// folder lies in the user's profile, whose access list keeps others out.
func private(os.FileInfo) bool { return true }

func trustedOwner(_, _ os.FileInfo) bool { return true }
