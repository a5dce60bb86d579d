// Runs calls of the ARM64 kernels that a file holds, on tensors that lie in the same file: test_arm.py writes it, and reads
// the results from it. The file is mapped where the addresses in it point.

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { ARGUMENTS = 21 };
static char *const BASE = (char *)0x2000000000;

typedef struct {
    char name[40];  // "" after the last call
    int64_t arguments[ARGUMENTS];
    float floats[2];
} Call;

// Numbers go to registers, then to eight bytes of stack each; floats to registers of their own: the order between both
// kinds does not count.
typedef void any_fn(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                    int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float,
                    float);

#define EACH_BUILD(name) EACH(name##_neon) EACH(name##_neon_dotprod) EACH(name##_neon_i8mm_bf16)
#define ALL                                                                                                            \
    EACH_BUILD(matmul_int8) EACH_BUILD(matmul_int4) EACH_BUILD(matmul_bf16) EACH_BUILD(matmul_fp32)                    \
    EACH_BUILD(paged_attention) EACH_BUILD(norm) EACH_BUILD(activation)
#define EACH(name) any_fn name;
ALL
#undef EACH
#define EACH(name) {#name, name},
static const struct { const char *name; any_fn *function; } functions[] = {ALL};

int kernels_features(void);

int main(int count, char **words) {
    struct stat about;
    const int file = count == 2 ? open(words[1], O_RDWR) : -1;
    if (file < 0) return 100 + kernels_features();
    if (fstat(file, &about)) return 2;
    if (mmap(BASE, about.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != BASE) return 3;
    for (const Call *call = (const Call *)BASE; call->name[0]; call++) {
        const int64_t *a = call->arguments;
        unsigned i = 0;
        while (i < sizeof functions / sizeof *functions && strcmp(functions[i].name, call->name)) i++;
        if (i == sizeof functions / sizeof *functions) return 4;
        functions[i].function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13],
                              a[14], a[15], a[16], a[17], a[18], a[19], a[20], call->floats[0], call->floats[1]);
    }
    return 0;
}
