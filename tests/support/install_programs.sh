#!/bin/sh
# Install the programs of the distribution that some tests need (Debian and its relatives, as root
# or with sudo that asks for no password). What is there already is left alone, and no service is
# started or enabled: the tests start their own.
set -eu

# Debian's PostgreSQL is built with TLS, unlike the embedded one, and is of another version.
PROGRAMS="pgbouncer haproxy curl openssl postgres"

is_installed() {
    case $1 in
    postgres) ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 ;;
    *) PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v "$1" >/dev/null 2>&1 ;;
    esac
}

package_of() {
    case $1 in
    postgres) echo postgresql ;;
    *) echo "$1" ;;
    esac
}

missing=""
for program in $PROGRAMS; do
    if is_installed "$program"; then
        echo "$program is installed."
    else
        missing="$missing $(package_of "$program")"
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

# Both files are there only for the time of the installation. Packages ask policy-rc.d whether they
# may start their service; 101 is "no". If the machine has a policy of its own, that one stays.
# Debian's PostgreSQL reads the other file, and then creates no database cluster of its own.
policy=/usr/sbin/policy-rc.d
no_cluster=/etc/postgresql-common/createcluster.d/leasehold-tests.conf
created="$no_cluster"
trap '$as_root rm -f $created' EXIT
trap 'exit 1' INT TERM HUP
if [ ! -e "$policy" ]; then
    created="$created $policy"
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
fi
$as_root mkdir -p "${no_cluster%/*}"
echo 'create_main_cluster = false' | $as_root tee "$no_cluster" >/dev/null

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
