/* What this processor has. */
#ifndef EDGE_PROCESSOR_H
#define EDGE_PROCESSOR_H

#ifdef EDGE_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

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

static int avx_vnni(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}

static enum level processor_level(void) {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return UNSUPPORTED;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C)) return UNSUPPORTED;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vnni"))
        return avx_vnni() ? AVX_VNNI : AVX2;
    return amx_granted() ? AMX : AVX512_VNNI;
}

static const char *level_name(int level) {
    return level == AMX ? "AMX" : level == AVX2 ? "AVX2" : level == AVX_VNNI ? "AVX-VNNI" : "AVX-512 VNNI";
}

static const struct instructions *instructions_of(int level) {
    if (level != AVX_VNNI) return level == AVX2 ? &edge_avx2 : &edge_avx512;
    edge_avx_vnni = avx_vnni();
    return &edge_avx_vnni_set;
}

#else
#ifdef __APPLE__
#include <sys/sysctl.h>

static int has(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value;
}

static enum level processor_level(void) {
    if (!has("hw.optional.arm.FEAT_DotProd")) return NEON;
    return has("hw.optional.arm.FEAT_I8MM") ? I8MM : DOTPROD;
}
#else
#include <sys/auxv.h>

#define HAS_DOTPROD (1ul << 20) /* of AT_HWCAP */
#define HAS_I8MM (1ul << 13)    /* of AT_HWCAP2 */

static enum level processor_level(void) {
    if (!(getauxval(AT_HWCAP) & HAS_DOTPROD)) return NEON;
    return getauxval(AT_HWCAP2) & HAS_I8MM ? I8MM : DOTPROD;
}
#endif

static const char *level_name(int level) {
    return level == I8MM ? "NEON with i8mm" : level == DOTPROD ? "NEON with dotprod" : "NEON";
}

static const struct instructions *instructions_of(int level) { return (void)level, &edge_neon; }
#endif

#endif
