/* SPDX-License-Identifier: MIT */
#include "client/kvctl/screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "ipc/utf8.h"

#define TO_OTHER_SCREEN "\033[?1049h\033[?25l"
#define BACK            "\033[?25h\033[?1049l"

static volatile sig_atomic_t got_end, got_resize, got_stop, got_timeout;
static struct termios saved;
static sigset_t waiting_mask; /* as at the start: signals come in only while we wait */
static bool taken;
static bool keys;

static void on_signal(int sig)
{
	if (sig == SIGWINCH)
		got_resize = 1;
	else if (sig == SIGTSTP)
		got_stop = 1;
	else if (sig == SIGALRM)
		got_timeout = 1;
	else
		got_end = 1;
}

static void take(void)
{
	struct termios raw = saved;

	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	raw.c_cc[VMIN] = 0;
	raw.c_cc[VTIME] = 0;
	tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
	fputs(TO_OTHER_SCREEN, stdout);
	fflush(stdout);
	taken = true;
}

void screen_open(void)
{
	static const int signals[] = {SIGINT,  SIGTERM,  SIGHUP,
				      SIGALRM, SIGWINCH, SIGTSTP};
	struct sigaction action = {.sa_handler = on_signal};
	sigset_t blocked;

	sigemptyset(&blocked);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		sigaddset(&blocked, signals[i]);
		sigaction(signals[i], &action, NULL);
	}
	sigprocmask(SIG_BLOCK, &blocked, &waiting_mask);
	if (tcgetattr(STDIN_FILENO, &saved) == 0) {
		keys = true;
		take();
	}
}

void screen_close(void)
{
	if (!taken)
		return;
	taken = false;
	fputs(BACK, stdout);
	fflush(stdout);
	tcsetattr(STDIN_FILENO, TCSADRAIN, &saved);
}

static void size(unsigned *ret_rows, unsigned *ret_columns)
{
	struct winsize ws;

	*ret_rows = 24;
	*ret_columns = 80;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_row && ws.ws_col) {
		*ret_rows = ws.ws_row;
		*ret_columns = ws.ws_col;
	}
}

/* Bytes of the first @columns characters. */
static size_t cut(const char *line, size_t len, unsigned columns)
{
	size_t at = 0;

	while (at < len && columns--) {
		size_t n = utf8_char_len(line + at, len - at);

		at += n ? n : 1;
	}
	return at;
}

void screen_show(const char *text)
{
	unsigned rows, columns;

	size(&rows, &columns);
	fputs("\033[H", stdout);
	for (unsigned row = 0; row < rows && *text; row++) {
		size_t len = strcspn(text, "\n");

		if (row)
			putchar('\n');
		fwrite(text, 1, cut(text, len, columns), stdout);
		fputs("\033[K", stdout);
		text += len + (text[len] == '\n');
	}
	fputs("\033[J", stdout);
	fflush(stdout);
}

/* Ctrl-Z: the shell gets its terminal, and we take it again when we go on. */
static void stop(void)
{
	got_stop = 0;
	screen_close();
	raise(SIGSTOP);
	take();
}

int screen_wait(double seconds)
{
	struct timespec now, left;
	struct pollfd in = {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN};
	double end;

	clock_gettime(CLOCK_MONOTONIC, &now);
	end = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 + seconds;
	for (;;) {
		double rest;
		int n;

		clock_gettime(CLOCK_MONOTONIC, &now);
		rest = end - (double)now.tv_sec - (double)now.tv_nsec * 1e-9;
		if (rest < 0)
			rest = 0;
		left.tv_sec = (time_t)rest;
		left.tv_nsec = (long)((rest - (double)left.tv_sec) * 1e9);
		n = ppoll(&in, 1, &left, keys ? &waiting_mask : NULL);
		if (got_end)
			return SCREEN_END;
		if (got_timeout)
			return SCREEN_TIMEOUT;
		if (got_stop || got_resize) {
			if (got_stop)
				stop();
			got_resize = 0;
			return SCREEN_RESIZED;
		}
		if (n == 0)
			return SCREEN_TIME;
		if (n > 0) {
			unsigned char key;
			ssize_t got = read(STDIN_FILENO, &key, 1);

			/* The terminal is gone. */
			if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
				return SCREEN_END;
			if (got == 1 && key)
				return key;
		} else if (errno != EINTR) {
			return SCREEN_END;
		}
	}
}
