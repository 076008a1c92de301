/* Products of quantized rows and packed weights.

   Activations are packed row tile by row tile: tile (i, k) holds rows 16 i ... and inputs 64 k ... Weights are packed
   column tile by column tile: tile (j, k) holds columns 16 j ... and inputs 64 k ... The order within a tile is that of
   the set's instructions (AVX2 packs activations row by row). Sums are exact integers, so neither that order nor the instructions change a result. */
#ifndef EDGE_MATRICES_H
#define EDGE_MATRICES_H

typedef vec (*activation_function)(vec);

/* rows [count, inputs] packed in `a`, with a scale each, times the matrix, plus its bias, through the activation:
   y[row * stride ...], written up to the padded number of columns. Rows of the last tile pair that `count` does not
   reach are computed from whatever `a` holds there, and not written. */
static inline __attribute__((always_inline)) void linear(const struct matrix *m, int level, void *a,
                                                         const float *scales, long count, float *y, long stride,
                                                         activation_function activate) {
    int32_t sums[ROWS * PANEL] __attribute__((aligned(64)));
    for (long column = 0; column < m->columns; column += PANEL) {
        vec factors[2], biases[2];
        for (int half = 0; half < 2; half++) {
            long at = column + 16 * half;
            factors[half] = vload_part(m->scale + at, m->columns - at);
            biases[half] = vload_part(m->bias + at, m->columns - at);
        }
        for (long first = 0; first < count; first += ROWS) {
            long rows = count - first < ROWS ? count - first : ROWS;
            multiply(m, level, packed_row(a, first, m->rows), column, sums);
            for (long row = 0; row < rows; row++) {
                vec scale = vset(scales[first + row]);
                for (int half = 0; half < 2; half++) {
                    vec x = sums_at(sums + row * PANEL + 16 * half, m->offset + column + 16 * half);
                    x = vfma(vmul(x, factors[half]), scale, biases[half]);
                    if (activate) x = activate(x);
                    vstore(y + (first + row) * stride + column + 16 * half, x);
                }
            }
        }
    }
}

#endif
