/* io/file_map.c: files in memory, whole or in part, by mapping them read-only. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_impl.h"

static sheaf_status check_regular(const char *path, int file, size_t *bytes)
{
  struct stat status;
  if (fstat(file, &status) != 0) return shf_io_fail_errno(path, "look at the file", errno);
  if (!S_ISREG(status.st_mode)) return shf_io_fail(SHEAF_IO, path, "this is not a regular file and cannot be mapped");
  if ((uintmax_t)status.st_size > SIZE_MAX / 2) {
    return shf_io_fail(SHEAF_IO, path, "%jd bytes are more than can be mapped", (intmax_t)status.st_size);
  }
  *bytes = (size_t)status.st_size;
  return SHEAF_OK;
}

sheaf_status shf_io_open_regular(const char *path, int *file, size_t *bytes)
{
  do { /* O_NONBLOCK: opening a pipe must not wait for its other end */
    *file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (*file < 0 && errno == EINTR);
  if (*file < 0) return shf_io_fail_errno(path, "open the file for reading", errno);
  sheaf_status status = check_regular(path, *file, bytes);
  if (status != SHEAF_OK) close(*file);
  return status;
}

/* Mappings begin at pages; what is handed out begins where it was asked for. */
sheaf_status shf_io_map_part(const char *path, int file, size_t first, size_t bytes, shf_io_bytes *content)
{
  *content = (shf_io_bytes){.bytes = bytes};
  if (bytes == 0) return SHEAF_OK;
  size_t before = first % (size_t)sysconf(_SC_PAGESIZE), all = bytes + before;
  void *mapping = mmap(NULL, all, PROT_READ, MAP_PRIVATE, file, (off_t)(first - before));
  if (mapping == MAP_FAILED) return shf_io_fail_errno(path, "map the file", errno);
  *content =
      (shf_io_bytes){.data = (unsigned char *)mapping + before, .bytes = bytes, .mapping = mapping, .mapped = all};
  return SHEAF_OK;
}

sheaf_status shf_io_map(const char *path, shf_io_bytes *content)
{
  int file;
  size_t bytes = 0;
  *content = (shf_io_bytes){.data = NULL};
  SHF_TRY(shf_io_open_regular(path, &file, &bytes));
  sheaf_status status = shf_io_map_part(path, file, 0, bytes, content);
  close(file);
  return status;
}

void shf_io_unmap(shf_io_bytes *content)
{
  if (content->mapping) munmap(content->mapping, content->mapped);
  *content = (shf_io_bytes){.data = NULL};
}
