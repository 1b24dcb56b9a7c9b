/* SPDX-License-Identifier: MIT */
#include "client/kvctl/utf8.h"

#include "ipc/utf8.h"

/*
 * Source: Unicode 15, general categories Cc, Cf, Zl, Zp, Co, noncharacters, and
 * Default_Ignorable_Code_Point of DerivedCoreProperties.txt. By code point, disjoint.
 */
static const struct {
	uint32_t first;
	uint32_t last;
} hidden[] = {
	{0x0000, 0x001f},   {0x007f, 0x009f},    {0x00ad, 0x00ad},   {0x034f, 0x034f},
	{0x0600, 0x0605},   {0x061c, 0x061c},    {0x06dd, 0x06dd},   {0x070f, 0x070f},
	{0x0890, 0x0891},   {0x08e2, 0x08e2},    {0x115f, 0x1160},   {0x17b4, 0x17b5},
	{0x180b, 0x180f},   {0x200b, 0x200f},    {0x2028, 0x202e},   {0x2060, 0x206f},
	{0x3164, 0x3164},   {0xe000, 0xf8ff},    {0xfdd0, 0xfdef},   {0xfe00, 0xfe0f},
	{0xfeff, 0xfeff},   {0xffa0, 0xffa0},    {0xfff0, 0xfffb},   {0xfffe, 0xffff},
	{0x110bd, 0x110bd}, {0x110cd, 0x110cd},  {0x13430, 0x1343f}, {0x1bca0, 0x1bca3},
	{0x1d173, 0x1d17a}, {0xe0000, 0x10ffff},
};

/* By these a name could pass for another one, or change the line it is in. */
bool utf8_is_hidden(uint32_t code)
{
	for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++)
		if (code >= hidden[i].first && code <= hidden[i].last)
			return true;
	/* the last two of each plane */
	return (code & 0xfffe) == 0xfffe;
}

/* What a model wrote must not steer the terminal; joiners and direction marks belong to answers. */
static void put(FILE *f, const char *str, size_t len, bool name)
{
	for (size_t i = 0; i < len;) {
		uint32_t code = 0;
		int n = utf8_next(str + i, len - i, &code);
		bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
		bool bad = name ? utf8_is_hidden(code)
				: control && code != '\n' && code != '\t';

		if (n <= 0 || bad)
			putc('?', f);
		else
			fwrite(str + i, 1, (size_t)n, f);
		i += n > 0 ? (size_t)n : 1;
	}
}

void utf8_put_shown(FILE *f, const char *str, size_t len)
{
	put(f, str, len, false);
}

void utf8_put_name(FILE *f, const char *str, size_t len)
{
	put(f, str, len, true);
}
