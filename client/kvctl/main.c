/* SPDX-License-Identifier: MIT */
/* kvctl: the verbs, and which of them the command line names. */
#include <stdio.h>
#include <string.h>

#include "client/kvctl/kvctl.h"

static const struct verb verbs[] = {
	{"status", cmd_status, "[--json]", "Say in a few lines how the daemon is",
	 "\nExample:\n  kvctl status\n"},
	{"stats", cmd_stats, "[--json]", "Print all counters of the daemon",
	 "\nExample:\n  kvctl stats --json | jq .cache.shared_hit_tokens\n"},
	{"clients", cmd_clients, "[--json]",
	 "List the connected programs, and what their users have and may have",
	 "\nThose of other users for an administrator only.\n"
	 "\nExample:\n  kvctl clients\n"},
	{"top", cmd_top, "[-b] [-n N] [-d SEC] [-o KEY]",
	 "Show the daemon and its clients, again and again",
	 "\nOptions:\n"
	 "  -b, --batch          write to stdout one after the other; with --json a line each\n"
	 "  -n, --iterations N   end after showing it N times\n"
	 "  -d, --delay SEC      from one time to the next (default 2)\n"
	 "  -o, --sort KEY       by id, client, pid, user, state, tok, ttft, hit, blocks,\n"
	 "                       wait or err (default tok)\n"
	 "\nKeys: q ends; i c p u s t f h b w e sort by ID, CLIENT, PID, USER, STATE, TOK/s,\n"
	 "TTFT, HIT%, BLOCKS, WAIT, ERR; r turns the order around; space shows it now.\n"
	 "\nExamples:\n  kvctl top\n  kvctl top -b -n 3 -d 1 -o blocks\n"},
	{"doctor", cmd_doctor, "[--json]",
	 "Look for what is wrong with the daemon and the machine, and say what to do",
	 "\nExit code 0 also with warnings; 1: something is broken; 3: no daemon runs;\n"
	 "4: its socket may not be opened.\n"
	 "\nExample:\n  sudo kvctl doctor\n"},
	{"monitor", cmd_monitor, "[--count N]",
	 "Print what happens in the daemon as it happens, a JSON object a line",
	 "\nFor an administrator only. Options:\n"
	 "      --count N        end after N events\n"
	 "\nExample:\n  sudo kvctl monitor | jq 'select(.event == \"request\")'\n"},
	{"drain", cmd_drain, "[--wait] [--off]",
	 "Take no new requests for the model, and let those that run finish",
	 "\nFor an administrator only. Options:\n"
	 "      --wait           wait until none is left\n"
	 "      --off            take new requests again\n"
	 "\nExample:\n  sudo kvctl drain --wait --timeout 300 && sudo systemctl restart kvd\n"},
	{"cache", cmd_cache, "flush|ls|pin|unpin|quota [OPTIONS]",
	 "Empty the prefix cache, list and pin what it holds, show and set users' limits",
	 "\nflush leaves running requests alone. Options:\n"
	 "      --domain D       only this sharing domain, such as uid:1000\n"
	 "      --model M        only blocks of this model: its name, or eight or more of the\n"
	 "                       first digits of its fingerprint\n"
	 "      --yes            do not ask; needed when stdin is no terminal\n"
	 "      PREFIX           only this prefix, with all that goes on from it\n"
	 "\nExit code 1 if anything that may be flushed is left.\n"
	 "\npin PREFIX computes a prefix and keeps it cached; unpin PREFIX lets it go. For\n"
	 "administrators. Option of pin:\n"
	 "      --public         every user's requests may read it\n"
	 "\nPREFIX is one of:\n"
	 "      --prefix TEXT    text, as of generate --raw; - reads it from stdin\n"
	 "      --prefix-file F  the same, read from a file\n"
	 "      --system TEXT    what all conversations with this system prompt share\n"
	 "      --system-file F  the same, read from a file\n"
	 "      --tokens LIST    token ids, with commas between\n"
	 "      --id ID          a line of 'kvctl cache ls'\n"
	 "\nquota, without limits, only shows them. Limits stay until the daemon ends:\n"
	 "      --user U         whose limits to set, by name or number\n"
	 "      --guaranteed-blocks N  --max-blocks N  --max-running N  --max-waiting N\n"
	 "      --max-connections N  --max-arena BYTES          0: no limit\n"
	 "\nExamples:\n  kvctl cache flush --yes\n  kvctl cache ls\n"
	 "  kvctl cache pin --public --system-file handbook.txt\n"
	 "  kvctl cache quota --user alice --max-blocks 1000\n"},
	{"generate", cmd_generate, "[OPTIONS] PROMPT|-",
	 "Answer a prompt, printed as it comes",
	 "\nOptions:\n"
	 "  -n, --choices N      N answers, each with a seed of its own, up to 16\n"
	 "      --raw            continue the text, without the model's chat template\n"
	 "      --system TEXT    system prompt of the conversation\n"
	 "      --system-file F  the same, read from a file\n"
	 "      --max-tokens N   end after N tokens (default 512; 0: no limit of its own)\n"
	 "      --temperature T  0, the default, takes the likeliest token always\n"
	 "      --top-k K        choose among the K likeliest tokens (0: all)\n"
	 "      --top-p P        choose among the likeliest tokens that sum up to P\n"
	 "      --min-p P        choose among tokens at least P times the likeliest\n"
	 "      --seed N         same seed, same answer (default: a random one)\n"
	 "      --stop TEXT      end before this text; may be repeated\n"
	 "      --ignore-eos     go on after the model's end token\n"
	 "      --logprobs       with --json: the logarithm of each token's probability\n"
	 "      --priority N     among one's own requests lower runs earlier, -100 to 100\n"
	 "      --salt N         share cached prefixes with requests of this salt only\n"
	 "      --report FILE    write the object of --json to FILE as well\n"
	 "\nExamples:\n"
	 "  kvctl generate 'What is the capital of France?'\n"
	 "  kvctl generate --system 'Answer in one word.' --json 'Capital of Peru?'\n"
	 "  kvctl generate -n 3 --temperature 1 'Name a colour.'\n"
	 "  kvctl generate --raw --max-tokens 20 - < story.txt\n"},
	{"tokenize", cmd_tokenize, "[--no-special] TEXT|-",
	 "Print the token ids of a text",
	 "\nOptions:\n"
	 "      --no-special     take <|im_end|> and the like as plain text\n"
	 "\nExample:\n  kvctl tokenize --json 'Hello, world!'\n"},
	{"score", cmd_score, "[--no-special] TEXT|-",
	 "Print how likely the model finds a text, token by token",
	 "\nOptions:\n"
	 "      --no-special     take <|im_end|> and the like as plain text\n"
	 "\nExample:\n  kvctl score --json - < article.txt | jq .perplexity\n"},
	{"latency", cmd_latency, "[--count N] [--interval MS]",
	 "Measure the way to the daemon and back with requests that do nothing",
	 "\nOptions:\n"
	 "      --count N        how many round trips (default 1000)\n"
	 "      --interval MS    wait between them, so that both sides fall asleep\n"
	 "\nExamples:\n  kvctl latency\n  kvctl latency --count 100 --interval 20\n"},
	{"model", cmd_model, "fetch [--from FILE] [--folder D] [--no-config]",
	 "Fetch the default model, check it, and name it in the configuration",
	 "\nOptions:\n"
	 "      --from FILE      the model, or its Python package, that is already here\n"
	 "      --folder D       put it there (default /var/lib/kvd/models)\n"
	 "      --no-config      write nothing below /etc/kvd\n"
	 "\nExample:\n  sudo kvctl model fetch && sudo systemctl restart kvd\n"},
	{"plan", cmd_plan, "--model FILE | --layers N --heads N --head-dim N [OPTIONS]",
	 "Tell what each KV format takes for a model, a batch and a context",
	 "\nOptions:\n"
	 "      --model FILE     a GGUF file; its header tells the shape\n"
	 "      --layers N       or the shape itself: layers,\n"
	 "      --heads N        attention heads,\n"
	 "      --kv-heads N     KV heads (default: as many as attention heads),\n"
	 "      --head-dim N     and their dimension\n"
	 "      --batch N        sequences at once (default 1)\n"
	 "      --context N      tokens of each, prompt and answer (default: the model's\n"
	 "                       context length, or 4096)\n"
	 "      --memory SIZE    also tell what fits: 512M, 80G\n"
	 "      --block-size N   tokens of a block, 16 (default) or 32\n"
	 "      --tensor-parallel-size N\n"
	 "                       devices that share the model (default 1)\n"
	 "\nNo daemon has to run.\n"
	 "\nExample:\n"
	 "  kvctl plan --layers 80 --heads 64 --kv-heads 8 --head-dim 128 --batch 64 \\\n"
	 "      --context 3240 --memory 80G\n"},
};

/* For the shells: in no list. */
static const struct verb hidden = {"__complete", cmd_complete, "WHAT",
				   "Print names for the completion of command lines",
				   "\nWHAT is models or domains.\n"};

#define N_VERBS (sizeof(verbs) / sizeof(verbs[0]))

static void print_usage(FILE *f)
{
	fprintf(f, "usage: kvctl [-s SOCKET] VERB [ARGUMENTS]\n\nVerbs:\n");
	for (size_t i = 0; i < N_VERBS; i++)
		fprintf(f, "  %-9s %s\n", verbs[i].name, verbs[i].summary);
	fprintf(f,
		"\n'kvctl VERB --help' tells more; kvctl(1) tells all.\n"
		"Exit codes: 0 ok, 1 failure, 2 usage, 3 daemon not running, 4 permission,\n"
		"5 not found, 6 timed out, 7 busy or over quota.\n");
}

int main(int argc, char **argv)
{
	static const struct option before_verb[] = {KVCTL_COMMON_OPTIONS};
	const struct verb none = {.name = "", .args = "", .summary = "", .help = ""};
	struct kvctl ctl = {.verb = &none};
	int i = 1;

	/* Options before the verb: those that every verb takes, no others. */
	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
			 !strcmp(argv[1], "help"))) {
		print_usage(stdout);
		return kvctl_finish(EXIT_OK);
	}
	while (i < argc && argv[i][0] == '-')
		i += (!strcmp(argv[i], "-s") || !strcmp(argv[i], "--socket") ||
		      !strcmp(argv[i], "--timeout"))
			     ? 2
			     : 1;
	if (i > argc)
		i = argc;
	(void)kvctl_next_option(&ctl, i, argv, before_verb);
	if (i >= argc) {
		print_usage(stderr);
		return EXIT_USAGE;
	}
	for (size_t v = 0; v < N_VERBS; v++) {
		if (strcmp(argv[i], verbs[v].name) != 0)
			continue;
		ctl.verb = &verbs[v];
		optind = 0;
		return kvctl_finish(ctl.verb->run(&ctl, argc - i, argv + i));
	}
	if (!strcmp(argv[i], hidden.name)) {
		ctl.verb = &hidden;
		optind = 0;
		return kvctl_finish(cmd_complete(&ctl, argc - i, argv + i));
	}
	kvctl_usage_error("unknown verb '%s'; 'kvctl --help' lists them", argv[i]);
}
