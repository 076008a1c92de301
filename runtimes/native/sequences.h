/* The two ends of a pass over packed sequences: layer 0's input, and the mean over each sequence's tokens.

   Sums have the order of numpy's, and products and sums are never fused (the build turns contraction off), so that the
   results are numpy's to the last bit (numpy sums the means of a single column in another order). */
#ifndef EDGE_SEQUENCES_H
#define EDGE_SEQUENCES_H

#define WIDEST 4096 /* values of a row, at most */

/* The sum of up to 128 values, in numpy's order: eight sums, added in pairs. */
static float block_sum(const float *x, long n) {
    if (n < 8) {
        float sum = -0.0f;
        for (long i = 0; i < n; i++) sum += x[i];
        return sum;
    }
    float r[8];
    long i = 8;
    memcpy(r, x, sizeof r);
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) r[j] += x[i + j];
    float sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++) sum += x[i];
    return sum;
}

/* numpy's pairwise sum. */
static float pairwise_sum(const float *x, long n) {
    if (n <= 128) return block_sum(x, n);
    long half = n / 2;
    half -= half % 8;
    return pairwise_sum(x, half) + pairwise_sum(x + half, n - half);
}

/* x [n] becomes its layer norm. squares: room for n values. */
static void norm_row(float *x, float *squares, long n, const struct embedding *e) {
    vec mean = vset(pairwise_sum(x, n) / n);
    for (long i = 0; i < n; i += 16) {
        vec apart = vsub(vload_part(x + i, n - i), mean);
        vstore_part(x + i, n - i, apart);
        vstore_part(squares + i, n - i, vmul(apart, apart));
    }
    vec factor = vset(1 / sqrtf(pairwise_sum(squares, n) / n + (float)e->eps));
    for (long i = 0; i < n; i += 16) {
        vec scaled = vmul(vmul(vload_part(x + i, n - i), factor), vload_part(e->norm_weight + i, n - i));
        vstore_part(x + i, n - i, vadd(scaled, vload_part(e->norm_bias + i, n - i)));
    }
}

static void embed_rows(const struct embedding *e, const int8_t *rows, const int32_t *ids, const int32_t *lengths,
                       const uint8_t *types, long sequences, void *states) {
    long n = e->hidden, token = 0, width = n * (e->half ? 2 : 4);
    float x[WIDEST] __attribute__((aligned(64))), squares[WIDEST] __attribute__((aligned(64)));
    for (long sequence = 0; sequence < sequences; sequence++)
        for (long place = 0; place < lengths[sequence]; place++, token++) {
            const float *position = e->positions + place * n, *type = e->types + types[token] * n;
            vec scale = vset(e->scales[ids[token]]);
            for (long i = 0; i < n; i += 16) {
                vec value = vmul(vbytes(rows + token * n + i, n - i), scale);
                value = vadd(value, vload_part(position + i, n - i));
                vstore(x + i, vadd(value, vload_part(type + i, n - i)));
            }
            norm_row(x, squares, n, e);
            store_states((char *)states + token * width, e->half, x, n);
        }
}

static void mean_rows(const void *states, int half, const int32_t *lengths, long sequences, long hidden, float *means) {
    const char *row = states;
    for (long sequence = 0; sequence < sequences; sequence++, means += hidden) {
        memset(means, 0, hidden * 4);
        for (long place = 0; place < lengths[sequence]; place++, row += hidden * (half ? 2 : 4))
            for (long i = 0; i < hidden; i += 16) {
                long left = hidden - i;
                vstore_part(means + i, left, vadd(vload_part(means + i, left), state_at(row, half, i, left)));
            }
        vec count = vset((float)lengths[sequence]);
        for (long i = 0; i < hidden; i += 16)
            vstore_part(means + i, hidden - i, vdiv(vload_part(means + i, hidden - i), count));
    }
}

#endif
