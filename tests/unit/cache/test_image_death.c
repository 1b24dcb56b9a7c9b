/* SPDX-License-Identifier: MIT */
/* The image of the pool: the process that writes it dies at any instruction. */
#include "tests/unit/cache/kept_world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

/* Publishes, shares, holds, makes public, evicts and reuses in a pool that is too small. */
static void live(struct world *w)
{
	struct holder u;

	visit(w, ALICE, "", true, 0, 2, 3);
	prefix_save(&w->index, 2 * BYTES);
	visit(w, BOB, "", true, 1, 2, 3);
	save_all(w);
	world_ask(w, &u, ALICE, "", true, 2, 2, 4);
	save_all(w);
	(void)prefix_pin(&w->index, w->index.node_of[u.table.ids[1]], true, 4);
	holder_deinit(&w->index, &u);
	visit(w, BOB, "", true, 3, 2, 5);
	save_all(w);
	for (uint32_t i = 0; i < w->n_blocks; i++)
		if (block_pool_get(&w->pool, i)->indexed &&
		    w->index.nodes[w->index.node_of[i]].pinned)
			(void)prefix_unpin(&w->index, w->index.node_of[i]);
	visit(w, BOB, "", false, 4, 0, 6);
	save_all(w);
	visit(w, ALICE, "", true, 5, 0, 6);
	save_all(w);
}

/* Restarts from what is there now. Return: blocks that are believed. */
static uint32_t resurrect(const struct world *w)
{
	struct world b;
	uint32_t n;

	ck_assert_int_eq(image_check(w->map, w->map_bytes, &w->model), 0);
	world_restart(&b, w);
	n = believe_all(&b);
	ck_assert_uint_eq(b.image.n_bad, 0);
	visit(&b, ALICE, "", true, 0, 2, 3);
	visit(&b, BOB, "", true, 1, 2, 3);
	visit(&b, BOB, "", false, 4, 0, 6);
	visit(&b, ALICE, "", true, 2, 2, 4);
	world_close(&b, true);
	return n;
}

START_TEST(death_at_every_instruction)
{
	struct world w;
	size_t n_steps = 0, n_states = 0, blocks_bytes;
	uint32_t n_most = 0;
	uint8_t *last_map, *last_blocks;
	int status;
	pid_t pid;

	world_new(&w, 8);
	blocks_bytes = (size_t)w.n_blocks * BYTES;
	last_map = calloc(1, w.map_bytes);
	last_blocks = calloc(1, blocks_bytes);
	ck_assert(last_map && last_blocks);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
			_exit(77);
		raise(SIGSTOP);
		live(&w);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		fputs("image: no right to trace, death at every instruction is not tried\n",
		      stderr);
		return;
	}
	while (WIFSTOPPED(status)) {
		if (memcmp(last_map, w.map, w.map_bytes) != 0 ||
		    memcmp(last_blocks, w.blocks, blocks_bytes) != 0) {
			uint32_t n = resurrect(&w);

			n_most = n > n_most ? n : n_most;
			n_states++;
			memcpy(last_map, w.map, w.map_bytes);
			memcpy(last_blocks, w.blocks, blocks_bytes);
		}
		ck_assert_int_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		n_steps++;
	}
	ck_assert(WIFEXITED(status));
	ck_assert_int_eq(WEXITSTATUS(status), 0);
	/* the pool was full, and much happened */
	ck_assert_uint_eq(n_most, 8);
	ck_assert_uint_gt(n_states, 500);
	fprintf(stderr, "image: %zu instructions, %zu states of the memory\n", n_steps,
		n_states);
	free(last_map);
	free(last_blocks);
	world_close(&w, false);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("death");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, death_at_every_instruction);
	return run_case("image-death", tc);
}
