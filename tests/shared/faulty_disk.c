/* Makes calls of the disk fail, below one folder, as LD_PRELOAD.

   FAULTY_FOLDER  paths below it are counted; nothing fails without it
   FAULTY_AFTER   so many calls work
   FAULTY_COUNT   so many fail after them; -1: all
   FAULTY_CODE    the errno; 0: a write takes a half of its bytes

   Calls: write, pwrite, writev, fsync, fdatasync, rename, and open for
   writing. Only the first three can be short. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;

static long number(const char *name) {
  const char *text = getenv(name);
  return text ? atol(text) : 0;
}

static int below(const char *path) {
  const char *folder = getenv("FAULTY_FOLDER");
  return folder && path && !strncmp(path, folder, strlen(folder));
}

static int fd_below(int fd) {
  char link[64], path[PATH_MAX];
  if (!getenv("FAULTY_FOLDER")) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return below(path);
}

/* Whether this call fails: 0: no; -1: it is short; else the errno. */
static int fault(int can_be_short) {
  long code = number("FAULTY_CODE");
  if (!code && !can_be_short) return 0;
  long at = atomic_fetch_add(&calls, 1) - number("FAULTY_AFTER");
  long count = number("FAULTY_COUNT");
  if (at < 0 || (count >= 0 && at >= count)) return 0;
  return code ? (int)code : -1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL(code)  \
  do {              \
    errno = (code); \
    return -1;      \
  } while (0)

ssize_t write(int fd, const void *data, size_t size) {
  int how = fd_below(fd) ? fault(1) : 0;
  if (how > 0) FAIL(how);
  return NEXT(write)(fd, data, how && size > 1 ? size / 2 : size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
  int how = fd_below(fd) ? fault(1) : 0;
  if (how > 0) FAIL(how);
  return NEXT(pwrite)(fd, data, how && size > 1 ? size / 2 : size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
  return pwrite(fd, data, size, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  int how = fd_below(fd) ? fault(1) : 0;
  if (how > 0) FAIL(how);
  return NEXT(writev)(fd, parts, how && count > 1 ? count / 2 : count);
}

int fsync(int fd) {
  int how = fd_below(fd) ? fault(0) : 0;
  if (how) FAIL(how);
  return NEXT(fsync)(fd);
}

int fdatasync(int fd) {
  int how = fd_below(fd) ? fault(0) : 0;
  if (how) FAIL(how);
  return NEXT(fdatasync)(fd);
}

int rename(const char *from, const char *to) {
  int how = below(from) || below(to) ? fault(0) : 0;
  if (how) FAIL(how);
  return NEXT(rename)(from, to);
}

static int open_fault(const char *path, int flags) {
  int writes = flags & (O_WRONLY | O_RDWR | O_CREAT);
  return writes && below(path) ? fault(0) : 0;
}

/* Two names of one call. */
#define OPEN(name)                                \
  int name(const char *path, int flags, ...) {    \
    va_list rest;                                 \
    va_start(rest, flags);                        \
    mode_t mode = va_arg(rest, mode_t);           \
    va_end(rest);                                 \
    int how = open_fault(path, flags);            \
    if (how) FAIL(how);                           \
    return NEXT(name)(path, flags, mode);         \
  }
OPEN(open)
OPEN(open64)

int openat(int folder, const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  int how = open_fault(path, flags);
  if (how) FAIL(how);
  return NEXT(openat)(folder, path, flags, mode);
}
