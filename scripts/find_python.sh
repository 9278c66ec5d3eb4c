#!/usr/bin/env bash
# Print the path of a Python that can hold this project: 3.11 or newer, with venv and pip.
# PYTHON=/path/to/python overrides the search. It knows nothing of what is installed afterwards.
set -u
cd "$(dirname "$0")/.." || exit 1

usable='import sys; sys.exit(0 if sys.version_info >= (3, 11) else 3)'
with_venv='import ensurepip, venv, sys; print(sys.executable)'
# 3.11 first: it is the version that every locked package has ready builds for.
candidates=${PYTHON:-python3.11 python3.12 python3.13 python3}

without_venv=
for attempt in 1 2; do
  for candidate in $candidates; do
    "$candidate" -c "$usable" </dev/null >/dev/null 2>&1 || continue
    path=$("$candidate" -c "$with_venv" </dev/null 2>/dev/null) && { printf '%s\n' "$path"; exit 0; }
    without_venv=$candidate
  done
  # Debian and its relatives keep venv in a package of its own.
  [ -n "$without_venv" ] && [ "$attempt" = 1 ] || break
  minor=$("$without_venv" -c 'import sys; print("3.%d" % sys.version_info[1])')
  scripts/debian.sh "python$minor-venv" >&2 || break
done

if [ -n "$without_venv" ]; then
  echo "$without_venv cannot make virtual environments: install its venv package (on Debian: apt-get install python$minor-venv)." >&2
elif [ -n "${PYTHON:-}" ]; then
  echo "PYTHON=$PYTHON is not a Python 3.11 or newer: name one that is, or leave PYTHON unset." >&2
else
  echo "Quorate needs Python 3.11 or newer, and none was found as $candidates: install one, or name it with PYTHON=/path/to/python." >&2
fi
exit 1
