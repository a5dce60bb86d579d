// What a build may need of an ARM64 processor, as its system says it. Of x86-64 torch knows it.

#if defined __aarch64__ && defined __linux__
#include <sys/auxv.h>
#elif defined __aarch64__ && defined __APPLE__
#include <stddef.h>
#include <sys/sysctl.h>
#endif

enum { NEON = 1, DOTPROD = 2, I8MM = 4, BF16 = 8 };  // every ARM64 has NEON

#if defined __aarch64__ && defined __APPLE__
static int has(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value;
}
#endif

__attribute__((visibility("default"))) int kernels_features(void) {
#if defined __aarch64__ && defined __linux__
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    return NEON | (first >> 20 & 1 ? DOTPROD : 0) | (second >> 13 & 1 ? I8MM : 0) |
           (second >> 14 & 1 ? BF16 : 0);
#elif defined __aarch64__ && defined __APPLE__
    return NEON | (has("hw.optional.arm.FEAT_DotProd") ? DOTPROD : 0) |
           (has("hw.optional.arm.FEAT_I8MM") ? I8MM : 0) | (has("hw.optional.arm.FEAT_BF16") ? BF16 : 0);
#else
    return 0;
#endif
}
