/* io/file_replace.c: writing all of a file or nothing: a temporary file beside the target, synced, renamed over it.
 *
 * Where the file system can, the temporary file has no name until it is complete: whatever ends the process before that
 * (a signal, a thread that cannot be had, want of memory), nothing is left behind. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
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
static void next_name(shf_io_output *output)
{
  static atomic_uint serial;
  snprintf(output->temporary, sizeof output->temporary, ".sheaf-%ld-%u.tmp", (long)getpid(),
           atomic_fetch_add(&serial, 1));
}

/* Tests ask for the ways of other systems by SHEAF_TEST_NAMED_FILES: files that have names from the start ("early"), or
 * that cannot be given any ("late"). */
static bool test_wants(const char *way)
{
  const char *wish = secure_getenv("SHEAF_TEST_NAMED_FILES");
  return wish && strcmp(wish, way) == 0;
}

/* The name that such a file gets in the end comes by way of /proc. */
static bool open_nameless(shf_io_output *output, unsigned mode)
{
  if (test_wants("early") || access("/proc/self/fd", X_OK) != 0) return false;
  output->file = openat(output->directory, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, mode);
  return output->file >= 0;
}

static sheaf_status open_named(shf_io_output *output, unsigned mode)
{
  for (int attempt = 0; attempt < NAME_ATTEMPTS; attempt++) {
    next_name(output);
    output->file =
        openat(output->directory, output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (output->file >= 0) return SHEAF_OK;
    if (errno != EEXIST && errno != EINTR) break;
  }
  output->temporary[0] = '\0';
  return shf_io_fail_errno(output->path, "create a temporary file in the file's directory", errno);
}

static sheaf_status open_temporary(shf_io_output *output)
{
  unsigned mode = output->replaces ? output->mode : 0666;
  return open_nameless(output, mode) ? SHEAF_OK : open_named(output, mode);
}

/* Where a file may be created but not linked: what was written so far into one that has a name from the beginning. */
static sheaf_status copy_to_named(shf_io_output *output)
{
  char buffer[1 << 16];
  struct stat status;
  int nameless = output->file;
  off_t at = 0;
  ssize_t got = 0;
  if (fstat(nameless, &status) != 0) return shf_io_fail_errno(output->path, "look at the temporary file", errno);
  sheaf_status copied = open_named(output, status.st_mode & 0777);
  if (copied != SHEAF_OK) {
    output->file = nameless;
    return copied;
  }
  while (copied == SHEAF_OK && (got = pread(nameless, buffer, sizeof buffer, at)) != 0) {
    if (got < 0 && errno == EINTR) continue;
    copied = got < 0 ? shf_io_fail_errno(output->path, "read the temporary file again", errno)
                     : shf_io_append(output, buffer, (size_t)got);
    at += got;
  }
  if (copied == SHEAF_OK && (fchmod(output->file, status.st_mode & 0777) != 0 || fsync(output->file) != 0))
    copied = shf_io_fail_errno(output->path, "sync the temporary file", errno);
  close(nameless);
  return copied;
}

/* Gives a complete file without a name one, beside the target, since only a rename replaces what is there. */
static sheaf_status name_temporary(shf_io_output *output)
{
  char from[32];
  if (output->temporary[0]) return SHEAF_OK;
  snprintf(from, sizeof from, "/proc/self/fd/%d", output->file);
  for (int attempt = 0; attempt < NAME_ATTEMPTS && !test_wants("late"); attempt++) {
    next_name(output);
    if (linkat(AT_FDCWD, from, output->directory, output->temporary, AT_SYMLINK_FOLLOW) == 0) return SHEAF_OK;
    if (errno != EEXIST && errno != EINTR) break;
  }
  return copy_to_named(output);
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
  sheaf_status named = synced == 0 ? name_temporary(output) : SHEAF_OK;
  int closed = close(output->file), close_errno = errno;
  if (synced != 0) return shf_io_fail_errno(output->path, "sync the temporary file", sync_errno);
  SHF_TRY(named);
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
    if (output->temporary[0]) unlinkat(output->directory, output->temporary, 0);
  } else if (fsync(output->directory) != 0 && errno != EINVAL) { /* EINVAL: this file system cannot sync directories */
    status = shf_io_fail_errno(output->path, "sync the directory (the file itself is complete and in place)", errno);
  }
  close(output->directory);
  return status;
}
