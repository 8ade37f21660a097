// A library to preload: it answers `cpuid` as a processor without AVX-512, AMX and, unless KEEP_AVX_VNNI is set, AVX-VNNI would.
//
// prepare.py has replaced the `cpuid` instructions of some libraries by `ud0`, which no compiler writes and which raises
// SIGILL. The handler here runs the real instruction, clears the features' bits, and goes on behind it.

#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define BIT(n) (UINT32_C(1) << (n))

static const unsigned char kUd0[2] = {0x0f, 0xff};
static struct sigaction previous;
static int keep_avx_vnni;

struct registers {
  uint32_t eax, ebx, ecx, edx;
};

static struct registers masked_cpuid(uint32_t leaf, uint32_t subleaf) {
  struct registers r;
  __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  if (leaf == 7 && subleaf == 0) {
    // AVX512 F DQ IFMA PF ER CD BW VL
    r.ebx &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
    // AVX512 VBMI VBMI2 VNNI BITALG VPOPCNTDQ
    r.ecx &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
    // AVX512 4VNNIW 4FMAPS VP2INTERSECT, AMX BF16, AVX512 FP16, AMX TILE INT8
    r.edx &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));
  } else if (leaf == 7 && subleaf == 1) {
    // AVX512 BF16, AMX FP16, AVX IFMA
    r.eax &= ~(BIT(5) | BIT(21) | BIT(23));
    if (!keep_avx_vnni) r.eax &= ~BIT(4);
    // AVX VNNI INT8, AVX NE CONVERT, AMX COMPLEX, AVX VNNI INT16, AVX10
    r.edx &= ~(BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19));
  } else if (leaf == 0xd && subleaf == 0) {
    // state of the mask registers, of zmm and of the tiles
    r.eax &= ~(BIT(5) | BIT(6) | BIT(7) | BIT(17) | BIT(18));
  } else if (leaf == 0x1e || leaf == 0x24) {
    memset(&r, 0, sizeof r);  // AMX and AVX10
  }
  return r;
}

static void handle(int signal_number, siginfo_t* info, void* context) {
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  if (memcmp((const void*)registers[REG_RIP], kUd0, sizeof kUd0) != 0) {
    // Not ours: whoever was there before us has it when the instruction raises the signal again.
    sigaction(signal_number, &previous, NULL);
    return;
  }
  (void)info;
  const struct registers r = masked_cpuid((uint32_t)registers[REG_RAX], (uint32_t)registers[REG_RCX]);
  registers[REG_RAX] = r.eax;
  registers[REG_RBX] = r.ebx;
  registers[REG_RCX] = r.ecx;
  registers[REG_RDX] = r.edx;
  registers[REG_RIP] += sizeof kUd0;
}

__attribute__((constructor)) static void install(void) {
  keep_avx_vnni = getenv("KEEP_AVX_VNNI") != NULL;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, &previous);
}
