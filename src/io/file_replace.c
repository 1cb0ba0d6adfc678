/* io/file_replace.c: writing all of a file or nothing: a temporary file beside the target, synced, renamed over it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_impl.h"

enum { NAME_ATTEMPTS = 1000, LARGEST_WRITE = 1 << 30 };

/* Opens the directory that holds path and finds the last part of path. */
static sheaf_status open_directory(shf_io_output *output)
{
  const char *path = output->path, *slash = strrchr(path, '/');
  char directory[PATH_MAX] = ".";
  output->base = slash ? slash + 1 : path;
  if (!*output->base) return shf_io_fail(SHEAF_IO, path, "this names no file to write");
  if (slash) {
    size_t length = slash == path ? 1 : (size_t)(slash - path);
    if (length >= sizeof directory) return shf_io_fail_errno(path, "open the file's directory", ENAMETOOLONG);
    memcpy(directory, path, length);
    directory[length] = '\0';
  }
  output->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return output->directory >= 0 ? SHEAF_OK : shf_io_fail_errno(path, "open the file's directory", errno);
}

/* A target that exists passes its permissions on. One that is no regular file (a device, a pipe, a directory) is not
 * replaced; a symbolic link to a regular file is, since that file may be shared. */
static sheaf_status look_at_target(shf_io_output *output)
{
  struct stat status;
  if (fstatat(output->directory, output->base, &status, 0) != 0) {
    return errno == ENOENT ? SHEAF_OK : shf_io_fail_errno(output->path, "look at the file to be replaced", errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return shf_io_fail(SHEAF_IO, output->path, "this is there already and is not a regular file; it is left alone");
  }
  output->replaces = true;
  output->mode = status.st_mode & 0777;
  return SHEAF_OK;
}

/* The name says nothing of the target's, which may be as long as a name can be. */
static sheaf_status open_temporary(shf_io_output *output)
{
  static atomic_uint serial;
  for (int attempt = 0; attempt < NAME_ATTEMPTS; attempt++) {
    snprintf(output->temporary, sizeof output->temporary, ".sheaf-%ld-%u.tmp", (long)getpid(),
             atomic_fetch_add(&serial, 1));
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    output->file = openat(output->directory, output->temporary, flags, output->replaces ? output->mode : 0666);
    if (output->file >= 0) return SHEAF_OK;
    if (errno != EEXIST && errno != EINTR) break;
  }
  return shf_io_fail_errno(output->path, "create a temporary file in the file's directory", errno);
}

sheaf_status shf_io_begin(shf_io_output *output, const char *path)
{
  *output = (shf_io_output){.path = path, .directory = -1, .file = -1};
  SHF_TRY(open_directory(output));
  sheaf_status status = look_at_target(output);
  if (status == SHEAF_OK) status = open_temporary(output);
  if (status == SHEAF_OK && output->replaces && fchmod(output->file, output->mode) != 0) { /* umask may have cut it */
    return shf_io_finish(output, shf_io_fail_errno(path, "set the permissions of the temporary file", errno));
  }
  if (status != SHEAF_OK) close(output->directory);
  return status;
}

sheaf_status shf_io_append(shf_io_output *output, const void *data, size_t bytes)
{
  const char *from = data;
  while (bytes > 0) {
    ssize_t written = write(output->file, from, bytes < LARGEST_WRITE ? bytes : LARGEST_WRITE);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return shf_io_fail_errno(output->path, "write the temporary file", written < 0 ? errno : ENOSPC);
    from += written;
    bytes -= (size_t)written;
  }
  return SHEAF_OK;
}

/* Contents reach the disk before the name does, so that no crash can leave a name with half a file. */
static sheaf_status sync_and_close(shf_io_output *output)
{
  int synced = fsync(output->file), sync_errno = errno;
  int closed = close(output->file), close_errno = errno;
  if (synced != 0) return shf_io_fail_errno(output->path, "sync the temporary file", sync_errno);
  if (closed != 0 && close_errno != EINTR) {
    return shf_io_fail_errno(output->path, "close the temporary file", close_errno);
  }
  return SHEAF_OK;
}

sheaf_status shf_io_finish(shf_io_output *output, sheaf_status status)
{
  if (status == SHEAF_OK) {
    status = sync_and_close(output);
  } else {
    close(output->file);
  }
  if (status == SHEAF_OK && renameat(output->directory, output->temporary, output->directory, output->base) != 0) {
    status = shf_io_fail_errno(output->path, "rename the temporary file", errno);
  }
  if (status != SHEAF_OK) {
    unlinkat(output->directory, output->temporary, 0);
  } else if (fsync(output->directory) != 0 && errno != EINVAL) { /* EINVAL: this file system cannot sync directories */
    status = shf_io_fail_errno(output->path, "sync the directory (the file itself is complete and in place)", errno);
  }
  close(output->directory);
  return status;
}
