#!/usr/bin/env bash
# tests/test_pages.sh: what is printed from the table of commands (help, manual page, completions, docs/cli.md), and the
# HTML pages in a browser without a window. The work is in tests/files/check_pages.py.
# Usage: test_pages.sh SHEAF VECTORS
set -u
command -v python3 >/dev/null 2>&1 || { echo "skipped: no python3 here"; exit 0; }
exec python3 "$(dirname "$0")/files/check_pages.py" "$1" "$(dirname "$0")/.."
