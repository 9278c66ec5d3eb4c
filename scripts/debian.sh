#!/usr/bin/env bash
# Install Debian packages where that is possible, and say what to install where it is not.
# Exit status 0: all of them are there. Usage: scripts/debian.sh PACKAGE...
set -u

missing=()
for package in "$@"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
names="${missing[*]}"

if ! command -v apt-get >/dev/null 2>&1; then
  echo "The Debian package $names is not here and this is no Debian system: what needs it is skipped and says so."
  exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "The Debian package $names is not installed, and installing it takes root: sudo apt-get install $names"
  exit 1
fi

export DEBIAN_FRONTEND=noninteractive
quiet_apt() { timeout 300 apt-get -q -o DPkg::Lock::Timeout=120 "$@" </dev/null 2>&1; }
install() { quiet_apt install -y --no-install-recommends "${missing[@]}"; }
echo "Installing the Debian package $names."
if log=$(install) || { log=$(quiet_apt update) && log=$(install); }; then
  exit 0
fi
printf '%s\n' "$log" | grep -E '^(E|W):' | tail -n 3
echo "The Debian package $names could not be installed: once apt-get works here, run: apt-get install $names"
exit 1
