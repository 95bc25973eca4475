package cli

import (
	"bufio"
	"errors"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// formatLines is the export of a log as it is: its record lines, byte for
// byte. The file is a JSONL log that verifies as the original does, wherever
// that is kept.
const formatLines = "lines"

// withLines are the flags that formatLines takes.
var withLines = map[string]bool{"format": true, "output": true, "record": true}

// runLines copies the lines of a log. One of several files is refused: its
// first lines state what was before, so that the files have to stay apart.
func (e *exporter) runLines(cmd *cobra.Command, args []string) (err error) {
	var other error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !withLines[f.Name] && other == nil {
			other = usage("--%s does not go with --format lines, which takes all records as they are", f.Name)
		}
	})
	if other != nil {
		return other
	}
	log, err := oneLog(args)
	if err != nil {
		return err
	}
	if err := e.announce(cmd, log); err != nil {
		return err
	}
	snap, err := log.snapshot()
	if err != nil {
		return err
	}
	defer snap.close()
	if len(snap.files) > 1 {
		return usage("%s has %d files, which verify apart; copy its folder, or name one of them", log.name, len(snap.files))
	}
	if err := e.spare(log); err != nil {
		return err
	}
	databases, err := databasesOf(snap.files)
	if err != nil {
		return err
	}
	sources, err := snap.sources(segmentLimits{most: defaultMaxSegment}, databases)
	if err != nil {
		return err
	}
	in, err := sources[0].Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := newOutput(e.file, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(out, 256<<10)
	_, err = io.Copy(struct{ io.Writer }{buffered}, in)
	if err == nil {
		err = buffered.Flush()
	}
	return out.finish(err)
}
