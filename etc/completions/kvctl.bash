# SPDX-License-Identifier: MIT
# bash completion for kvctl. Verbs and options come out of its own help, names of models and
# domains out of the daemon, so that nothing here grows stale.
_kvctl() {
	local cur prev word verb='' sub='' i
	cur=${COMP_WORDS[COMP_CWORD]}
	prev=${COMP_WORDS[COMP_CWORD - 1]}
	COMPREPLY=()
	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		case $word in
		-s | --socket | --timeout) ((i++)) ;;
		-*) ;;
		*)
			if [[ -z $verb ]]; then
				verb=$word
			elif [[ -z $sub ]]; then
				sub=$word
			fi
			;;
		esac
	done
	case $prev in
	-s | --socket | --system-file | --report | --from)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return
		;;
	-o | --sort)
		# "or" ends the list of keys in the help.
		mapfile -t COMPREPLY < <(compgen -W "$(kvctl "${verb:-status}" --help 2>/dev/null |
			sed -n '/--sort KEY/,/)/p' | sed 's/.*by //; s/(.*//' | tr -d ',' |
			sed 's/\bor\b//')" -- "$cur")
		return
		;;
	--folder)
		mapfile -t COMPREPLY < <(compgen -d -- "$cur")
		return
		;;
	--model)
		mapfile -t COMPREPLY < <(compgen -W "$(kvctl __complete models 2>/dev/null)" -- "$cur")
		return
		;;
	--domain)
		mapfile -t COMPREPLY < <(compgen -W "$(kvctl __complete domains 2>/dev/null)" -- "$cur")
		# The shell breaks words at colons: what stands before it is there already.
		if [[ $cur == *:* && $COMP_WORDBREAKS == *:* ]]; then
			COMPREPLY=("${COMPREPLY[@]#"${cur%"${cur##*:}"}"}")
		fi
		return
		;;
	esac
	if [[ $cur == -* ]]; then
		# shellcheck disable=SC2086 # no verb is no argument
		mapfile -t COMPREPLY < <(compgen -W "$(kvctl ${verb:-status} --help 2>/dev/null |
			grep -oE -- '--[a-z][a-z-]*')" -- "$cur")
	elif [[ -z $verb ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(kvctl --help 2>/dev/null |
			sed -n 's/^  \([a-z]\{1,\}\)  *[A-Z].*/\1/p')" -- "$cur")
	elif [[ -z $sub ]]; then
		# "usage: kvctl cache flush|ls|pin ..." names what comes next, if it is a word.
		mapfile -t COMPREPLY < <(compgen -W "$(kvctl "$verb" --help 2>/dev/null |
			sed -n '1s/^usage: kvctl [a-z]* \([a-z|]\{2,\}\).*/\1/p' | tr '|' ' ')" -- "$cur")
	fi
}
complete -F _kvctl kvctl
