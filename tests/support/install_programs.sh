#!/bin/sh
# Install the programs of the distribution that some tests need (Debian and its relatives, as root
# or with sudo that asks for no password). What is there already is left alone, and no service is
# started or enabled: the tests start their own.
set -eu

PROGRAMS="pgbouncer haproxy curl"

missing=""
for program in $PROGRAMS; do
    if PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v "$program" >/dev/null 2>&1; then
        echo "$program is installed."
    else
        missing="$missing $program"
    fi
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "This is not Debian (no apt-get). Install these with your own package manager:$missing" >&2
    exit 1
fi

if [ "$(id -u)" -eq 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    echo "Installing needs root. Run as root: apt-get install --no-install-recommends$missing" >&2
    exit 1
fi

# Packages ask policy-rc.d whether they may start their service; 101 is "no". Ours is there only
# for the time of the installation, and only where the machine has none of its own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap '$as_root rm -f "$policy"' EXIT
    trap 'exit 1' INT TERM HUP
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
fi

# shellcheck disable=SC2086  # both are lists of words
{
    $as_root apt-get update -q
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
}

# Not on the next boot either. A program without a service has nothing to disable.
for program in $missing; do
    if command -v systemctl >/dev/null 2>&1; then
        $as_root systemctl disable "$program" >/dev/null 2>&1 || true
    elif [ -x /usr/sbin/update-rc.d ]; then
        $as_root /usr/sbin/update-rc.d "$program" disable >/dev/null 2>&1 || true
    fi
done
echo "Installed:$missing"
