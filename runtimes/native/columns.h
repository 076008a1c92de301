/* Weights packed for sets of 256 bits. */
#ifndef EDGE_COLUMNS_H
#define EDGE_COLUMNS_H

/* Packs the columns 64 * part ... 64 * part + 63. Row r of a tile holds inputs 4 r ... 4 r + 3 of the first column, then of
   the second. */
static void pack_bytes(const struct matrix *m, long part) {
    long depth = up_to(m->rows, 64) / 64, end = up_to(m->columns, PANEL);
    for (long first = part * 64; first < end && first < part * 64 + 64; first += 16)
        for (long row = 0; row < depth * 64; row += 4) {
            __m128i r[4], low[2], high[2];
            for (int i = 0; i < 4; i++) {
                int8_t buffer[16] = {0};
                long left = row + i < m->rows ? m->columns - first : 0;
                if (left > 0) memcpy(buffer, m->weight + (row + i) * m->columns + first, left < 16 ? left : 16);
                r[i] = _mm_loadu_si128((const __m128i *)buffer);
            }
            for (int i = 0; i < 2; i++) {
                low[i] = _mm_unpacklo_epi8(r[2 * i], r[2 * i + 1]);
                high[i] = _mm_unpackhi_epi8(r[2 * i], r[2 * i + 1]);
            }
            __m128i *to = (__m128i *)(m->packed + (first / 16 * depth + row / 64) * TILE + row % 64 * 16);
            _mm_storeu_si128(to, _mm_unpacklo_epi16(low[0], low[1]));
            _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(low[0], low[1]));
            _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(high[0], high[1]));
            _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(high[0], high[1]));
        }
}

#endif
