/* The instruction sets that the layer is compiled for, and which of them this processor has.

   Each set is a file of its own (avx512.c, avx_vnni.c, avx2.c, neon.c), compiled for its instructions. A level is a set
   and, within it, the instructions of its products. Better levels have higher numbers. */
#ifndef EDGE_CPU_H
#define EDGE_CPU_H

#if defined(__x86_64__) && defined(__linux__)
#define EDGE_X86
enum level { UNSUPPORTED = 0, AVX2 = 1, AVX_VNNI = 2, AVX512_VNNI = 3, AMX = 4 };
#elif defined(__aarch64__) && defined(__LITTLE_ENDIAN__) || defined(__aarch64__) && defined(__linux__)
#define EDGE_ARM
enum level { UNSUPPORTED = 0, NEON = 1, DOTPROD = 2, I8MM = 3 };
#endif

#if defined(EDGE_X86) || defined(EDGE_ARM)
#define EDGE_COMPILED
#endif

/* All functions between the two may use these instructions, and run only where processor_level found them. */
#define EDGE_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define BEGIN_TARGET(names) EDGE_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define END_TARGET EDGE_PRAGMA(clang attribute pop)
#else
#define BEGIN_TARGET(names) EDGE_PRAGMA(GCC push_options) EDGE_PRAGMA(GCC target(names))
#define END_TARGET EDGE_PRAGMA(GCC pop_options)
#endif

#endif
