/* SPDX-License-Identifier: MIT */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/model/gguf.h"
#include "tests/unit/model/gguf-image.h"
#include "tests/unit/suite.h"

static struct load_error err;

/* Every kind of value, and two tensors. */
static struct image small_image(uint32_t version)
{
	static const char *const strs[] = {"one", "", "three"};
	struct image im = {0};
	float f32s[2] = {1.5f, -2.0f};
	uint8_t row[64];
	double f64 = 0.25;

	image_header(&im, version, 2, 9);
	image_kv_str(&im, "general.architecture", "llama");
	image_kv_u32(&im, "a.u32", 77);
	image_kv_bool(&im, "a.bool", 1);
	image_kv_strs(&im, "a.strs", strs, 3);
	image_kv_array(&im, "a.f32s", GGUF_F32, 2);
	image_put(&im, f32s, sizeof(f32s));
	image_str(&im, "a.f64");
	image_u32(&im, GGUF_F64);
	image_put(&im, &f64, sizeof(f64));
	image_str(&im, "a.i64");
	image_u32(&im, GGUF_I64);
	image_u64(&im, (uint64_t)-3);
	image_str(&im, "a.u64");
	image_u32(&im, GGUF_U64);
	image_u64(&im, 4000000000u);
	image_kv_array(&im, "a.nested", GGUF_ARRAY, 2);
	image_u32(&im, GGUF_U8);
	image_u64(&im, 1);
	image_put(&im, "x", 1);
	image_u32(&im, GGUF_STRING);
	image_u64(&im, 1);
	image_str(&im, "deep");
	image_tensor(&im, "w", 32, 2, GGUF_TENSOR_Q4_1, 0);
	image_tensor(&im, "norm", 4, 1, GGUF_TENSOR_F32, 64);
	image_pad(&im, 32);
	memset(row, 7, sizeof(row));
	image_put(&im, row, 64);
	image_put(&im, f32s, 8);
	image_put(&im, f32s, 8);
	return im;
}

static int open_image(const struct image *im, struct gguf **ret)
{
	memset(&err, 0, sizeof(err));
	return gguf_open_memory(ret, "test.gguf", im->data, im->len, &err);
}

/* The image must be refused with @code and a line that holds @text. */
static void refuse(struct image *im, int code, const char *text)
{
	struct gguf *gguf = NULL;

	ck_assert_int_eq(open_image(im, &gguf), code);
	ck_assert_ptr_null(gguf);
	ck_assert_msg(strncmp(err.text, "test.gguf: ", 11) == 0, "%s", err.text);
	ck_assert_msg(strstr(err.text, text) != NULL, "\"%s\" lacks \"%s\"", err.text,
		      text);
	image_free(im);
}

START_TEST(reads_every_value)
{
	struct image im = small_image((uint32_t)_i);
	const struct gguf_tensor *tensor;
	const struct gguf_kv *kv;
	const uint8_t *cursor;
	struct gguf *gguf;
	struct gguf_str str;
	uint32_t u32;
	float f32;
	bool b;

	ck_assert_msg(open_image(&im, &gguf) == 0, "%s", err.text);
	ck_assert_int_eq(gguf_get_str(gguf, "general.architecture", &str, &err), 0);
	ck_assert(gguf_str_eq(str, "llama"));
	ck_assert_int_eq(gguf_get_u32(gguf, "a.u32", &u32, &err), 0);
	ck_assert_uint_eq(u32, 77);
	ck_assert_int_eq(gguf_get_u32(gguf, "a.u64", &u32, &err), 0);
	ck_assert_uint_eq(u32, 4000000000u);
	ck_assert_int_eq(gguf_get_u32(gguf, "a.i64", &u32, &err), -EINVAL);
	ck_assert_int_eq(gguf_get_u32(gguf, "a.bool", &u32, &err), -EINVAL);
	ck_assert_int_eq(gguf_get_u32(gguf, "a.none", &u32, &err), 1);
	ck_assert_int_eq(gguf_get_bool(gguf, "a.bool", &b, &err), 0);
	ck_assert(b);
	ck_assert_int_eq(gguf_get_f32(gguf, "a.f64", &f32, &err), 0);
	ck_assert(f32 == 0.25f);
	ck_assert_int_eq(gguf_get_array(gguf, "a.f32s", GGUF_F32, &kv, &err), 0);
	ck_assert_uint_eq(kv->n, 2);
	ck_assert(gguf_array_f32(kv, 1) == -2.0f);
	ck_assert_int_eq(gguf_get_array(gguf, "a.f32s", GGUF_STRING, &kv, &err), -EINVAL);
	ck_assert_str_eq(err.text, "test.gguf: key a.f32s is not an array of string");
	ck_assert_int_eq(gguf_get_array(gguf, "a.strs", GGUF_STRING, &kv, &err), 0);
	cursor = kv->data;
	ck_assert(gguf_str_eq(gguf_next_str(kv, &cursor), "one"));
	ck_assert(gguf_str_eq(gguf_next_str(kv, &cursor), ""));
	ck_assert(gguf_str_eq(gguf_next_str(kv, &cursor), "three"));
	ck_assert_ptr_eq(cursor, kv->end);

	ck_assert_uint_eq(gguf_n_tensors(gguf), 2);
	tensor = gguf_find_tensor(gguf, "w");
	ck_assert_ptr_nonnull(tensor);
	ck_assert_uint_eq(tensor->n_bytes, 40);
	ck_assert_uint_eq(tensor->dims[0], 32);
	ck_assert_uint_eq(tensor->dims[1], 2);
	ck_assert_uint_eq(tensor->dims[3], 1);
	ck_assert_uint_eq(tensor->data[39], 7);
	tensor = gguf_find_tensor(gguf, "norm");
	ck_assert_ptr_eq(tensor->data + tensor->n_bytes, im.data + im.len);
	ck_assert_ptr_null(gguf_find_tensor(gguf, "nor"));
	ck_assert_ptr_null(gguf_find_tensor(gguf, "norm2"));
	gguf_free(gguf);
	image_free(&im);
}
END_TEST

/* Written to after it was opened: lengths that lead out of the value end where it does. */
START_TEST(strings_that_grow_later)
{
	static const char *const strs[] = {"one", "two"};
	struct image im = {0};
	const struct gguf_kv *kv;
	const uint8_t *cursor;
	struct gguf *gguf;
	struct gguf_str str;

	image_header(&im, 3, 0, 1);
	image_kv_strs(&im, "a.strs", strs, 2);
	ck_assert_msg(open_image(&im, &gguf) == 0, "%s", err.text);
	ck_assert_int_eq(gguf_get_array(gguf, "a.strs", GGUF_STRING, &kv, &err), 0);
	for (size_t n_set = 1; n_set <= 8; n_set++) {
		memset((uint8_t *)im.data + (kv->data - im.data), 0xff, n_set);
		cursor = kv->data;
		str = gguf_next_str(kv, &cursor);
		ck_assert_ptr_eq(str.data + str.len, kv->end);
		ck_assert_ptr_eq(cursor, kv->end);
		str = gguf_next_str(kv, &cursor);
		ck_assert_uint_eq(str.len, 0);
		ck_assert_ptr_eq(cursor, kv->end);
	}
	gguf_free(gguf);
	image_free(&im);
}
END_TEST

/* A file that stops early is refused wherever it stops. The copy ends at the end of its
 * allocation, so that a sanitizer sees a read beyond it. */
START_TEST(truncated_anywhere)
{
	struct image im = small_image(3);

	for (size_t len = 0; len < im.len; len++) {
		struct image part = {malloc(len ? len : 1), len, len};
		struct gguf *gguf = NULL;

		ck_assert_ptr_nonnull(part.data);
		memcpy(part.data, im.data, len);
		ck_assert_int_eq(open_image(&part, &gguf), -EINVAL);
		ck_assert_uint_gt(strlen(err.text), 12);
		image_free(&part);
	}
	image_free(&im);
}
END_TEST

/* Any byte may change: the file is refused or read without leaving the image. */
START_TEST(any_byte_changed)
{
	static const uint8_t xors[] = {0x01, 0x80, 0xff};
	struct image im = small_image(3);

	for (size_t i = 0; i < im.len; i++) {
		for (size_t k = 0; k < sizeof(xors); k++) {
			struct gguf *gguf = NULL;

			im.data[i] ^= xors[k];
			if (open_image(&im, &gguf) == 0)
				gguf_free(gguf);
			im.data[i] ^= xors[k];
		}
	}
	image_free(&im);
}
END_TEST

START_TEST(refuses_by_name)
{
	struct image im = {0};

	image_put(&im, "GGML\3\0\0\0", 8);
	refuse(&im, -EINVAL, "not a GGUF file");
	image_header(&im, 1, 0, 0);
	refuse(&im, -ENOTSUP, "version 1 is not supported");
	image_header(&im, 4, 0, 0);
	refuse(&im, -ENOTSUP, "version 4 is not supported");
	image_header(&im, 0x03000000, 0, 0);
	refuse(&im, -ENOTSUP, "big-endian");
	image_header(&im, 3, 0, 1);
	image_kv_u32(&im, "split.count", 3);
	refuse(&im, -ENOTSUP, "split GGUF files");
	image_header(&im, 3, 1, 0);
	image_tensor(&im, "blk.3.attn_q.weight", 256, 2, 10, 0);
	refuse(&im, -ENOTSUP,
	       "tensor blk.3.attn_q.weight: type Q2_K (10) is not supported; supported: "
	       "F32 F16");
}
END_TEST

START_TEST(refuses_hostile_counts)
{
	struct image im = {0};

	image_header(&im, 3, UINT64_MAX, 0);
	refuse(&im, -EINVAL, "tensors, the limit is 65536");
	image_header(&im, 3, 0, UINT64_C(1) << 63);
	refuse(&im, -EINVAL, "metadata keys, the limit is 65536");
	image_header(&im, 3, 0, 1);
	image_u64(&im, UINT64_MAX);
	refuse(&im, -EINVAL, "a metadata key is 18446744073709551615 bytes");
	image_header(&im, 3, 0, 1);
	image_kv_array(&im, "a", GGUF_U64, UINT64_MAX / 8 + 2);
	refuse(&im, -EINVAL, "key a is an array of");
	image_header(&im, 3, 0, 1);
	image_kv_array(&im, "a", GGUF_U64, 1 << 20);
	refuse(&im, -EINVAL, "truncated inside a");
	image_header(&im, 3, 0, 1);
	image_kv_array(&im, "a", GGUF_STRING, 1 << 24);
	refuse(&im, -EINVAL, "truncated inside a");
	image_header(&im, 3, 0, 1);
	image_kv_array(&im, "a", 13, 0);
	refuse(&im, -EINVAL, "unknown value type 13");
	image_header(&im, 3, 0, 1);
	image_kv_array(&im, "a", GGUF_ARRAY, 1);
	for (int i = 0; i < 6; i++) {
		image_u32(&im, GGUF_ARRAY);
		image_u64(&im, 1);
	}
	refuse(&im, -EINVAL, "nests more than 4 arrays");
	image_header(&im, 3, 0, 2);
	image_kv_u32(&im, "same", 1);
	image_kv_u32(&im, "same", 1);
	refuse(&im, -EINVAL, "metadata key same appears twice");
	for (uint32_t align = 0; align < 48; align += 12) {
		image_header(&im, 3, 0, 1);
		image_kv_u32(&im, "general.alignment", align);
		refuse(&im, -EINVAL, "general.alignment is");
	}
}
END_TEST

START_TEST(refuses_hostile_tensors)
{
	struct image im = {0};

	image_header(&im, 3, 1, 0);
	image_tensor(&im, "w", UINT64_C(1) << 40, UINT64_C(1) << 40, 0, 0);
	refuse(&im, -EINVAL, "dimension 1 (1099511627776) is out of range");
	image_header(&im, 3, 1, 0);
	image_tensor(&im, "w", UINT64_C(1) << 31, UINT64_C(1) << 30, 0, 0);
	image_pad(&im, 32);
	refuse(&im, -EINVAL, "end outside the file");
	image_header(&im, 3, 1, 0);
	image_tensor(&im, "w", UINT64_C(1) << 32, UINT64_C(1) << 30, 0, 0);
	refuse(&im, -EINVAL, "tensor w is too large");
	image_header(&im, 3, 1, 0);
	image_tensor(&im, "w", 4, 0, 0, 0);
	refuse(&im, -EINVAL, "dimension 1 (0)");
	image_header(&im, 3, 1, 0);
	image_tensor(&im, "w", 48, 1, GGUF_TENSOR_Q8_0, 0);
	refuse(&im, -EINVAL, "rows of 48 are not a multiple of 32 (Q8_0)");
	image_header(&im, 3, 1, 0);
	image_tensor(&im, "w", 4, 1, 0, 16);
	image_pad(&im, 32);
	refuse(&im, -EINVAL, "offset 16 is not a multiple of 32");
	image_header(&im, 3, 1, 0);
	image_tensor(&im, "w", 4, 1, 0, UINT64_MAX - 31);
	image_pad(&im, 32);
	image_u64(&im, 0);
	image_u64(&im, 0);
	refuse(&im, -EINVAL, "end outside the file");
	image_header(&im, 3, 2, 0);
	image_tensor(&im, "w", 4, 1, 0, 0);
	image_tensor(&im, "w", 4, 1, 0, 0);
	image_pad(&im, 32);
	image_u64(&im, 0);
	image_u64(&im, 0);
	refuse(&im, -EINVAL, "tensor w appears twice");
	image_header(&im, 3, 1, 0);
	image_str(&im, "w");
	image_u32(&im, 5);
	refuse(&im, -EINVAL, "tensor w has 5 dimensions");
	image_header(&im, 3, 1, 0);
	image_tensor(&im,
		     "a-name-of-more-than-sixty-four-bytes-is-not-legal-in-any-gguf-file-"
		     "at-all",
		     4, 1, 0, 0);
	refuse(&im, -EINVAL, "a tensor name is 73 bytes long, the limit is 64");
}
END_TEST

/* What a terminal would act on does not reach the error line. */
START_TEST(error_text_is_printable)
{
	struct image im = {0};
	struct gguf *gguf;

	image_header(&im, 3, 1, 0);
	image_tensor(&im, "\033[31m\n\xff", 4, 0, 0, 0);
	ck_assert_int_eq(open_image(&im, &gguf), -EINVAL);
	for (const char *p = err.text; *p; p++)
		ck_assert_int_ge(*p, ' ');
	image_free(&im);
}
END_TEST

static void refuse_path(const char *path, int code, const char *text)
{
	struct gguf *gguf = NULL;

	ck_assert_int_eq(gguf_open(&gguf, path, &err), code);
	ck_assert_msg(strstr(err.text, path) && strstr(err.text, text), "%s", err.text);
}

START_TEST(files)
{
	char dir[] = "/tmp/kvd-gguf-XXXXXX", path[64];
	struct image im = small_image(3);
	struct gguf_stamp stamp;
	struct gguf *gguf;
	FILE *f;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/m.gguf", dir);
	refuse_path(path, -ENOENT, "cannot open: No such file");
	refuse_path(dir, -EINVAL, "not a regular file");
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	refuse_path(path, -EINVAL, "not a regular file");
	unlink(path);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fclose(f);
	refuse_path(path, -EINVAL, "0 bytes are too few");
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(im.data, 1, im.len, f), im.len);
	fclose(f);
	ck_assert_int_eq(gguf_open(&gguf, path, &err), 0);
	ck_assert_uint_eq(gguf_n_tensors(gguf), 2);
	/* just written: it could be written again within the same tick */
	ck_assert(!gguf_stamp(gguf, &stamp));
	gguf_free(gguf);
	ck_assert_int_eq(gguf_open_memory(&gguf, "m", im.data, im.len, &err), 0);
	ck_assert(!gguf_stamp(gguf, &stamp));
	gguf_free(gguf);
	unlink(path);
	rmdir(dir);
	image_free(&im);
}
END_TEST

enum { LONG_FILE = 1 << 20 };

/* A file of a megabyte: metadata, then one tensor. */
static int write_long_file(const char *path)
{
	static uint8_t ones[LONG_FILE];
	struct image im = {0};
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	memset(ones, 1, sizeof(ones));
	image_header(&im, 3, 1, 0);
	image_tensor(&im, "t", LONG_FILE / 4, 1, GGUF_TENSOR_F32, 0);
	image_pad(&im, 32);
	image_put(&im, ones, sizeof(ones));
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, im.data, im.len), (ssize_t)im.len);
	image_free(&im);
	return fd;
}

static void *sum_in_thread(void *arg)
{
	const struct gguf_tensor *t = gguf_tensor_at(arg, 0);
	unsigned *sum = malloc(sizeof(*sum));

	ck_assert_ptr_nonnull(sum);
	*sum = 0;
	for (size_t i = 0; i < t->n_bytes; i++)
		*sum += t->data[i];
	return sum;
}

/* Cut while it is read, by two threads: an error that says so, and no signal. Once more, and
 * another file beside it is not touched. */
START_TEST(a_file_that_gets_shorter)
{
	char dir[] = "/tmp/kvd-gguf-XXXXXX", path[64], other_path[64];
	struct gguf *gguf, *other;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/m.gguf", dir);
	snprintf(other_path, sizeof(other_path), "%s/other.gguf", dir);
	close(write_long_file(other_path));
	ck_assert_int_eq(gguf_open(&other, other_path, &err), 0);
	for (int round = 0; round < 2; round++) {
		int fd = write_long_file(path);
		pthread_t thread;
		void *sums[2];

		ck_assert_int_eq(gguf_open(&gguf, path, &err), 0);
		ck_assert_int_eq(gguf_check_read(gguf, -ENOTSUP, &err), -ENOTSUP);
		ck_assert_int_eq(ftruncate(fd, 100000), 0);
		ck_assert_int_eq(pthread_create(&thread, NULL, sum_in_thread, gguf), 0);
		sums[0] = sum_in_thread(gguf);
		ck_assert_int_eq(pthread_join(thread, &sums[1]), 0);
		for (int i = 0; i < 2; i++) {
			ck_assert_uint_lt(*(unsigned *)sums[i], 110000);
			free(sums[i]);
		}
		ck_assert_int_eq(gguf_check_read(gguf, 0, &err), -EIO);
		ck_assert_msg(strstr(err.text,
				     "m.gguf: became shorter while it was read: "
				     "100000 of "),
			      "%s", err.text);
		gguf_free(gguf);
		close(fd);
	}
	free(sum_in_thread(other));
	ck_assert_int_eq(gguf_check_read(other, 0, &err), 0);
	gguf_free(other);
	unlink(path);
	unlink(other_path);
	rmdir(dir);
}
END_TEST

/* Behind its end, in its last page, a file reads as zeros without a signal. */
START_TEST(a_file_that_loses_its_last_bytes)
{
	char dir[] = "/tmp/kvd-gguf-XXXXXX", path[64];
	struct gguf *gguf;
	size_t len;
	void *sum;
	int fd;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/m.gguf", dir);
	fd = write_long_file(path);
	ck_assert_int_eq(gguf_open(&gguf, path, &err), 0);
	(void)gguf_image(gguf, &len);
	ck_assert_int_eq(ftruncate(fd, (off_t)len - 1), 0);
	sum = sum_in_thread(gguf);
	ck_assert_uint_eq(*(unsigned *)sum, LONG_FILE - 1);
	free(sum);
	ck_assert_int_eq(gguf_check_read(gguf, 0, &err), -EIO);
	ck_assert_ptr_nonnull(strstr(err.text, "m.gguf: became shorter while it was"));
	gguf_free(gguf);
	close(fd);
	unlink(path);
	rmdir(dir);
}
END_TEST

/* What concerns no model file ends the process as ever, also while one is open. */
START_TEST(other_lost_pages_end_the_process)
{
	char dir[] = "/tmp/kvd-gguf-XXXXXX", path[64];
	struct gguf *gguf;
	int fd;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/m.gguf", dir);
	fd = write_long_file(path);
	signal(SIGBUS, SIG_DFL); /* a sanitizer's would end it by an exit status */
	ck_assert_int_eq(gguf_open(&gguf, path, &err), 0);
	unlink(path);
	rmdir(dir);
	if (_i)
		gguf_free(gguf);
	volatile uint8_t *map = mmap(NULL, LONG_FILE, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_int_eq(ftruncate(fd, 0), 0);
	(void)map[LONG_FILE / 2];
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("gguf");

	tcase_add_loop_test(tc, reads_every_value, 2, 4);
	tcase_add_test(tc, strings_that_grow_later);
	tcase_add_test(tc, truncated_anywhere);
	tcase_add_test(tc, any_byte_changed);
	tcase_add_test(tc, refuses_by_name);
	tcase_add_test(tc, refuses_hostile_counts);
	tcase_add_test(tc, refuses_hostile_tensors);
	tcase_add_test(tc, error_text_is_printable);
	tcase_add_test(tc, files);
	tcase_add_test(tc, a_file_that_gets_shorter);
	tcase_add_test(tc, a_file_that_loses_its_last_bytes);
	tcase_add_loop_test_raise_signal(tc, other_lost_pages_end_the_process, SIGBUS, 0,
					 2);
	return run_case("gguf", tc);
}
