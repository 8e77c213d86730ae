/* manifest.h - the machine code that was verified, against the machine code that is here.
**
**   kernels/manifest.yaml   verified: in the repository, changed by ./tl manifest --update only
**   the build's record      the same table of the cubins that this build has made
**
**   cubin's compiler = the manifest's compiler   every kernel must be as in kernels/manifest.yaml
**   another compiler                             its code was never compared with anything: kernels
**                                                must be as in the build's record, and it is said
**
** Both texts are YAML with one line for each image and each kernel, so that a change is a diff:
**
**   images:
**   - { image: loss, arch: 90, compiler: "13.0.88", flags: "-arch sm_90a -fmad false" }
**   kernels:
**   - { image: loss, arch: 90, kernel: row_max_rows, registers: 24, .., sha256: 2f.. }
**
** A kernel that is changed, missing or new is refused by name before anything runs.
*/
#ifndef TL_MANIFEST_H
#define TL_MANIFEST_H

#include "cubin.h"
#include "cuda_images.h"

typedef struct tl_manifest {
  const char *verified, *own; /* texts; either may be empty */
} tl_manifest;

/* The table of these images as text; the caller frees it. */
tl_status tl_manifest_record(const tl_cuda_image *images, int32_t count, char **out);
/* Refuses, by name, kernels of `image` that are not as the table says. *other gets the compiler
** that the table of verified code was made with, when the image was made by another; else "". */
tl_status tl_manifest_check(const tl_manifest *manifest, const tl_cuda_image *image,
                            char other[32]);

/* The two texts inside this program. */
extern const char tl_manifest_verified[], tl_manifest_own[];

#endif
