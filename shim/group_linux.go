package shim

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dieWithParent has the kernel kill the child when the shim dies without being
// able to: a SIGKILL, the OOM killer. What the child started ends by the end
// of its input.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// inherit makes the shim the parent of what the child starts and leaves behind
// (PR_SET_CHILD_SUBREAPER), so that leaving the process group is no way out,
// and collects what ends of it. stop ends the collecting.
func inherit(child int) (stop func()) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return func() {} // the process group remains
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-ended:
				collect(child)
			case <-done:
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		signal.Stop(ended)
		close(done)
		collect(child)
	})
}

// collect takes the exit codes of orphans, which would else stay as zombies.
// The child's own is for its Wait.
func collect(child int) {
	for _, pid := range orphans(child) {
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
	}
}

// orphans are the processes that the shim has inherited. What it started itself,
// such as the command of an anchor, is in its own process group, which the
// child and what comes of it are not.
func orphans(child int) (all []int) {
	own := syscall.Getpgrp()
	for _, pid := range childrenOf(os.Getpid()) {
		if group, err := syscall.Getpgid(pid); pid != child && err == nil && group != own {
			all = append(all, pid)
		}
	}
	return all
}

// killOrphans kills all that the shim has inherited, and what these inherit to
// it when they die, until nothing is left.
func killOrphans(child int) {
	deadline := time.Now().Add(killPause)
	for {
		found := false
		for _, pid := range orphans(child) {
			found = true
			for _, p := range append(descendants(pid, 0), pid) {
				_ = syscall.Kill(p, syscall.SIGKILL)
			}
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
		if !found || time.Now().After(deadline) {
			return
		}
		time.Sleep(2 * time.Millisecond) // nothing tells when the kernel is done with them
	}
}

// deepest bounds the walk through a tree of processes.
const deepest = 64

func descendants(pid, depth int) (all []int) {
	if depth == deepest {
		return nil
	}
	for _, c := range childrenOf(pid) {
		all = append(append(all, descendants(c, depth+1)...), c)
	}
	return all
}

// childrenOf lists the processes that any thread of a process started or
// inherited.
func childrenOf(pid int) (all []int) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil
	}
	for _, task := range tasks {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(text)) {
			if c, err := strconv.Atoi(field); err == nil {
				all = append(all, c)
			}
		}
	}
	return all
}
