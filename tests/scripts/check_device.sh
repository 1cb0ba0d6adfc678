#!/usr/bin/env bash
# The commands on files with --device cuda:0, compared with the CPU. The work is in tests/files/check_device.py.
# Usage: check_device.sh SHEAF [PLUGIN LIBRARY SONAME]
set -u
command -v python3 >/dev/null 2>&1 || { echo "skipped: no python3 here"; exit 0; }
exec python3 "$(dirname "$0")/../files/check_device.py" "$@"
