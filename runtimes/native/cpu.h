/* What this processor has, and the instructions that the rest is compiled for. */
#ifndef EDGE_CPU_H
#define EDGE_CPU_H

#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum level { UNSUPPORTED = 0, AVX512_VNNI = 1, AMX = 2 };

#define ARCH_REQ_XCOMP_PERM 0x1023
#define TILE_DATA 18

/* Linux gives a process the registers of AMX only if it asks for them. */
static int amx_granted(void) {
    unsigned a, b, c, d, low, high;
    const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25; /* amx-bf16, amx-tile, amx-int8 */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & wanted) != wanted) return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low >> 17 & 3) != 3) return 0;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

static enum level processor_level(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vnni"))
        return UNSUPPORTED;
    return amx_granted() ? AMX : AVX512_VNNI;
}

/* Everything that is included after this line may use these instructions, and runs only where processor_level found
   them. AMX is used only where the level says so. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target( \
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c,amx-tile,amx-int8,amx-bf16"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c,amx-tile,amx-int8,amx-bf16")
#endif

struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* gcc does not know that tile loads read memory; this keeps what was stored before them before them. */
static inline void settled(void) { __asm__ volatile("" : : : "memory"); }

/* Eight tiles of 16 rows of 64 bytes. */
static void tiles_on(void) {
    struct tile_shapes shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    for (int i = 0; i < 8; i++) shapes.row_bytes[i] = 64, shapes.rows[i] = 16;
    /* gcc believes that the next instruction reads eight bytes of the 64, and would leave the others unwritten. */
    __asm__ volatile("" : : "r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
}

static void tiles_off(void) { _tile_release(); }

#endif
