#!/bin/sh
# SPDX-License-Identifier: MIT
# systemd's own opinion of the units: no complaint, and the score of the sandbox, which
# must not rise. Both are looked at without a running systemd.
# usage: test-units.sh SOURCE_ROOT
set -eu
cd "${1:-.}"
command -v systemd-analyze >/dev/null || exit 77
version=$(systemd-analyze --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
[ "$version" -ge 252 ] || exit 77

# Tenths: systemd-analyze counts the exposure from 0 to 100.
score_max=4
score_affinity_max=5
score_gpu_max=7

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/units" "$work/libexec/kvd"
cp systemd/kvd.socket systemd/kvd-admin.socket systemd/kvd.slice "$work/units"
# A program has to be where the unit says.
echo '#!/bin/sh' >"$work/libexec/kvd/kvd"
chmod +x "$work/libexec/kvd/kvd"
sed "s,@libexecdir@,$work/libexec,g" systemd/kvd.service.in >"$work/units/kvd.service"
# Unknown before, and meant to be passed over there.
[ "$version" -ge 254 ] || sed -i '/^FileDescriptorStorePreserve=/d' "$work/units/kvd.service"
# Users that only the installed package brings.
sed -i 's/^User=kvd$/User=root/; s/^Group=kvd$/Group=root/' "$work/units/kvd.service"

SYSTEMD_UNIT_PATH=$work/units:
SYSTEMD_LOG_LEVEL=warning
export SYSTEMD_UNIT_PATH SYSTEMD_LOG_LEVEL
status=0

for unit in kvd.service kvd.socket kvd-admin.socket kvd.slice; do
	systemd-analyze verify --man=no --recursive-errors=no "$work/units/$unit" \
		>"$work/out" 2>&1 || status=1
	# Units of this machine are none of our business.
	if grep -F kvd "$work/out"; then
		status=1
	fi
done

sed -i 's/^User=root$/User=kvd/; s/^Group=root$/Group=kvd/' "$work/units/kvd.service"
score() {
	if ! systemd-analyze security --offline=yes --no-pager --threshold="$2" \
		"$work/units/kvd.service" >"$work/out" 2>&1; then
		echo "$1: the exposure is above $2 tenths"
		grep -v '✓' "$work/out" || :
		status=1
	fi
	tail -n 1 "$work/out"
}
score kvd.service "$score_max"
mkdir "$work/units/kvd.service.d"
cp systemd/50-affinity.conf "$work/units/kvd.service.d"
score 'kvd.service with 50-affinity.conf' "$score_affinity_max"
rm "$work/units/kvd.service.d/50-affinity.conf"
cp systemd/50-gpu.conf "$work/units/kvd.service.d"
score 'kvd.service with 50-gpu.conf' "$score_gpu_max"
exit "$status"
