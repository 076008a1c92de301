/* Stands between a program and the C library, counts what it does to files below some folders, and spoils one of it.
 *
 * Environment:
 *   SHIM_WATCH    folders, separated by ':'; only operations below them count.
 *   SHIM_COUNTER  a file of at least 24 bytes that all processes share: operations so far, operations spoiled, and how
 *                 many of the operations were reads.
 *   SHIM_AT       the number of the operation to spoil, from 1; 0 spoils none.
 *   SHIM_DO       kill: die before it. torn: write half of it, then die. EIO, ENOSPC: it fails so.
 *   SHIM_LASTING  if 1, every later write, creation and flush fails, too (EIO, ENOSPC): a full or dead disk.
 *   SHIM_READS    if 1, reads count as well.
 *   SHIM_LOG      a file to which every change is appended, with its data, and what the program prints.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, RENAME, UNLINK, MKDIR, RMDIR, LINK, SYNC, PRINTED, SYMLINK, READ };
enum { GO, DIE, TEAR, FAIL };

struct record { uint32_t kind, path, other, pad; uint64_t node; int64_t offset; uint64_t length; };

static char watched[16][PATH_MAX];
static int watches, what, code, lasting, reads, journal = -1, ready;
static uint64_t at;
static volatile uint64_t *counter;
static pthread_mutex_t order = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

__attribute__((constructor)) static void begin(void) {
    if (ready) return;
    ready = 1;
    const char *folders = getenv("SHIM_WATCH"), *doing = getenv("SHIM_DO"), *value;
    while (folders && *folders && watches < 16) {
        size_t n = strcspn(folders, ":");
        if (n && n < PATH_MAX) { memcpy(watched[watches], folders, n); watched[watches++][n] = 0; }
        folders += n + (folders[n] == ':');
    }
    if ((value = getenv("SHIM_AT"))) at = strtoull(value, 0, 10);
    lasting = (value = getenv("SHIM_LASTING")) && *value == '1';
    reads = (value = getenv("SHIM_READS")) && *value == '1';
    if (doing) {
        what = !strcmp(doing, "kill") ? DIE : !strcmp(doing, "torn") ? TEAR : FAIL;
        code = !strcmp(doing, "ENOSPC") ? ENOSPC : EIO;
    }
    if ((value = getenv("SHIM_COUNTER"))) {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, value, O_RDWR | O_CLOEXEC, 0);
        if (fd >= 0) {
            void *shared = mmap(0, 24, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (shared != MAP_FAILED) counter = shared;
            syscall(SYS_close, fd);
        }
    }
    if ((value = getenv("SHIM_LOG")))
        journal = (int)syscall(SYS_openat, AT_FDCWD, value, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static int is_watched(const char *path) {
    begin();
    for (int i = 0; i < watches; i++) {
        size_t n = strlen(watched[i]);
        if (!strncmp(path, watched[i], n) && (path[n] == '/' || path[n] == 0)) return 1;
    }
    return 0;
}

static int of_descriptor(int fd, char *path) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, path, PATH_MAX - 1);
    if (n < 0) { path[0] = 0; return 0; }
    path[n] = 0;
    return is_watched(path);
}

static int of_name(int folder, const char *name, char *path) {
    path[0] = 0;
    if (!name) return 0;
    if (name[0] != '/') {
        if (folder == AT_FDCWD) { if (!getcwd(path, PATH_MAX)) path[0] = 0; }
        else of_descriptor(folder, path);
        size_t n = strlen(path);
        if (n + 1 < PATH_MAX) { path[n] = '/'; path[n + 1] = 0; }
    }
    strncat(path, name, PATH_MAX - 1 - strlen(path));
    return is_watched(path);
}

/* Counts one operation and says what becomes of it. */
static int judge(int grows) {
    if (!counter) return GO;
    uint64_t n = __atomic_add_fetch(&counter[0], 1, __ATOMIC_SEQ_CST);
    if (!at || n < at || (n > at && !(lasting && what == FAIL && grows))) return GO;
    __atomic_add_fetch(&counter[1], 1, __ATOMIC_SEQ_CST);
    if (what == DIE) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }
    return what;
}

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }

static uint64_t node_of(int fd) { struct stat s; return fstat(fd, &s) ? 0 : (uint64_t)s.st_ino; }

static void note(uint32_t kind, const char *path, const char *other, uint64_t node, int64_t offset,
                 const struct iovec *parts, int count, uint64_t length) {
    if (journal < 0) return;
    struct record r = {kind, (uint32_t)strlen(path), other ? (uint32_t)strlen(other) : 0, 0, node, offset, length};
    struct iovec all[64];
    int n = 0;
    all[n++] = (struct iovec){&r, sizeof r};
    all[n++] = (struct iovec){(void *)path, r.path};
    if (other) all[n++] = (struct iovec){(void *)other, r.other};
    for (int i = 0; i < count && length && n < 64; i++) {
        size_t take = parts[i].iov_len < length ? parts[i].iov_len : length;
        all[n++] = (struct iovec){parts[i].iov_base, take};
        length -= take;
    }
    syscall(SYS_writev, journal, all, n);
}

/* Writes: all of them end here. offset < 0 means the file's own position. */
static ssize_t put(int fd, const struct iovec *parts, int count, int64_t offset) {
    char path[PATH_MAX];
    begin();
    int mine = of_descriptor(fd, path);
    if (!mine && (fd != 1 || journal < 0)) {
        return offset < 0 ? syscall(SYS_writev, fd, parts, count)
                          : syscall(SYS_pwritev, fd, parts, count, (unsigned long)offset, (unsigned long)(offset >> 32));
    }
    uint64_t total = 0;
    for (int i = 0; i < count; i++) total += parts[i].iov_len;
    pthread_mutex_lock(&order);
    ssize_t done = -1;
    int fate = mine ? judge(1) : GO;
    if (fate == FAIL) { pthread_mutex_unlock(&order); errno = code; return -1; }
    int64_t where = offset;
    if (where < 0 && mine) {
        struct stat s;
        where = (fcntl(fd, F_GETFL) & O_APPEND) && !fstat(fd, &s) ? s.st_size : lseek(fd, 0, SEEK_CUR);
    }
    if (fate == TEAR) {
        uint64_t half = total / 2;
        for (int i = 0; i < count && half; i++) {
            size_t take = parts[i].iov_len < half ? parts[i].iov_len : half;
            syscall(SYS_pwrite64, fd, parts[i].iov_base, take, where);
            where += (int64_t)take;
            half -= take;
        }
        die();
    }
    done = offset < 0 ? syscall(SYS_writev, fd, parts, count)
                      : syscall(SYS_pwritev, fd, parts, count, (unsigned long)offset, (unsigned long)(offset >> 32));
    int saved = errno;
    if (done > 0) {
        if (mine) note(WRITE, path, 0, node_of(fd), where, parts, count, (uint64_t)done);
        else note(PRINTED, "", 0, 0, 0, parts, count, (uint64_t)done);
    }
    errno = saved;
    pthread_mutex_unlock(&order);
    return done;
}

ssize_t write(int fd, const void *data, size_t n) { struct iovec v = {(void *)data, n}; return put(fd, &v, 1, -1); }
ssize_t writev(int fd, const struct iovec *v, int n) { return put(fd, v, n, -1); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at_) { struct iovec v = {(void *)data, n}; return put(fd, &v, 1, at_); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at_) { struct iovec v = {(void *)data, n}; return put(fd, &v, 1, at_); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at_) { return put(fd, v, n, at_); }
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at_) { return put(fd, v, n, at_); }

/* Copies inside the kernel are refused: every caller falls back to reading and writing. */
ssize_t sendfile(int out, int in, off_t *from, size_t n) {
    char path[PATH_MAX];
    if (of_descriptor(out, path)) { errno = EINVAL; return -1; }
    return syscall(SYS_sendfile, out, in, from, n);
}
ssize_t sendfile64(int out, int in, off64_t *from, size_t n) { return sendfile(out, in, (off_t *)from, n); }
ssize_t copy_file_range(int in, off64_t *a, int out, off64_t *b, size_t n, unsigned flags) {
    char path[PATH_MAX];
    if (of_descriptor(out, path)) { errno = EINVAL; return -1; }
    return syscall(SYS_copy_file_range, in, a, out, b, n, flags);
}

static int open_at(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE || !of_name(folder, name, path))
        return (int)syscall(SYS_openat, folder, name, flags, mode);
    struct stat s;
    pthread_mutex_lock(&order);
    int fresh = syscall(SYS_newfstatat, folder, name, &s, 0) != 0, fd = -1;
    if (!fresh && (!(flags & O_TRUNC) || !S_ISREG(s.st_mode))) {
        fd = (int)syscall(SYS_openat, folder, name, flags, mode);
    } else {
        int fate = judge(1);
        if (fate == TEAR) die();
        if (fate == FAIL) errno = code;
        else fd = (int)syscall(SYS_openat, folder, name, flags, mode);
        if (fd >= 0) note(fresh ? CREATE : TRUNCATE, path, 0, node_of(fd), 0, 0, 0, 0);
    }
    pthread_mutex_unlock(&order);
    return fd;
}

#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, flags); mode = va_arg(a, mode_t); va_end(a); }
int open(const char *name, int flags, ...) { MODE return open_at(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE return open_at(AT_FDCWD, name, flags, mode); }
int openat(int folder, const char *name, int flags, ...) { MODE return open_at(folder, name, flags, mode); }
int openat64(int folder, const char *name, int flags, ...) { MODE return open_at(folder, name, flags, mode); }
int creat(const char *name, mode_t mode) { return open_at(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *name, mode_t mode) { return open_at(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* An operation on names: counted, spoiled or done, and noted. */
#define NAMED(grows, kind, path, other, call) \
    pthread_mutex_lock(&order); \
    int fate = judge(grows), result = 0; \
    if (fate == TEAR) die(); \
    if (fate == FAIL) { errno = code; result = -1; } \
    else if (!(result = (int)(call))) note(kind, path, other, 0, 0, 0, 0, 0); \
    pthread_mutex_unlock(&order); \
    return result

int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    char path[PATH_MAX], other[PATH_MAX];
    int mine = of_name(a, from, path);
    if (!(of_name(b, to, other) | mine)) return (int)syscall(SYS_renameat2, a, from, b, to, flags);
    NAMED(0, RENAME, path, other, syscall(SYS_renameat2, a, from, b, to, flags));
}
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return renameat2(a, from, b, to, 0); }
int unlinkat(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    if (!of_name(folder, name, path)) return (int)syscall(SYS_unlinkat, folder, name, flags);
    NAMED(0, flags & AT_REMOVEDIR ? RMDIR : UNLINK, path, 0, syscall(SYS_unlinkat, folder, name, flags));
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char *name) { return unlink(name) && errno == EISDIR ? rmdir(name) : 0; }
int mkdirat(int folder, const char *name, mode_t mode) {
    char path[PATH_MAX];
    if (!of_name(folder, name, path) || faccessat(folder, name, F_OK, 0) == 0)
        return (int)syscall(SYS_mkdirat, folder, name, mode);
    NAMED(1, MKDIR, path, 0, syscall(SYS_mkdirat, folder, name, mode));
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    char path[PATH_MAX], other[PATH_MAX];
    int mine = of_name(a, from, path);
    if (!(of_name(b, to, other) | mine)) return (int)syscall(SYS_linkat, a, from, b, to, flags);
    NAMED(1, LINK, path, other, syscall(SYS_linkat, a, from, b, to, flags));
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int symlink(const char *target, const char *name) {
    char path[PATH_MAX];
    if (!of_name(AT_FDCWD, name, path)) return (int)syscall(SYS_symlinkat, target, AT_FDCWD, name);
    NAMED(1, SYMLINK, target, path, syscall(SYS_symlinkat, target, AT_FDCWD, name));
}

/* An operation on an open file. */
#define OPENED(grows, kind, offset, call) \
    char path[PATH_MAX]; \
    if (!of_descriptor(fd, path)) return (int)(call); \
    pthread_mutex_lock(&order); \
    int fate = judge(grows), result = 0; \
    if (fate == TEAR) die(); \
    if (fate == FAIL) { errno = code; result = -1; } \
    else if (!(result = (int)(call))) note(kind, path, 0, node_of(fd), offset, 0, 0, 0); \
    pthread_mutex_unlock(&order); \
    return result

int ftruncate64(int fd, off64_t size) { OPENED(1, TRUNCATE, size, syscall(SYS_ftruncate, fd, size)); }
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
int fsync(int fd) { OPENED(1, SYNC, 0, syscall(SYS_fsync, fd)); }
int fdatasync(int fd) { OPENED(1, SYNC, 0, syscall(SYS_fdatasync, fd)); }
int truncate64(const char *name, off64_t size) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    int result = ftruncate64(fd, size), saved = errno;
    syscall(SYS_close, fd);
    errno = saved;
    return result;
}
int truncate(const char *name, off_t size) { return truncate64(name, size); }
int posix_fallocate64(int fd, off64_t from, off64_t n) {
    struct stat s;
    if (fstat(fd, &s)) return errno;
    return from + n > s.st_size && ftruncate64(fd, from + n) ? errno : 0;
}
int posix_fallocate(int fd, off_t from, off_t n) { return posix_fallocate64(fd, from, n); }
int fallocate64(int fd, int mode, off64_t from, off64_t n) {
    char path[PATH_MAX];
    if (!of_descriptor(fd, path)) return (int)syscall(SYS_fallocate, fd, mode, from, n);
    errno = EOPNOTSUPP;
    return -1;
}
int fallocate(int fd, int mode, off_t from, off_t n) { return fallocate64(fd, mode, from, n); }

/* Reads fail or die; they change nothing and are not noted. */
#define READING(call) \
    char path[PATH_MAX]; \
    begin(); \
    if (reads && of_descriptor(fd, path)) { \
        if (counter) __atomic_add_fetch(&counter[2], 1, __ATOMIC_SEQ_CST); \
        int fate = judge(0); \
        if (fate == TEAR) die(); \
        if (fate == FAIL) { errno = code; return -1; } \
    } \
    return call
ssize_t read(int fd, void *into, size_t n) { READING(syscall(SYS_read, fd, into, n)); }
ssize_t readv(int fd, const struct iovec *v, int n) { READING(syscall(SYS_readv, fd, v, n)); }
ssize_t pread64(int fd, void *into, size_t n, off64_t from) { READING(syscall(SYS_pread64, fd, into, n, from)); }
ssize_t pread(int fd, void *into, size_t n, off_t from) { return pread64(fd, into, n, from); }
ssize_t preadv(int fd, const struct iovec *v, int n, off_t from) {
    READING(syscall(SYS_preadv, fd, v, n, (unsigned long)from, (unsigned long)(from >> 32)));
}
ssize_t preadv64(int fd, const struct iovec *v, int n, off64_t from) { return preadv(fd, v, n, from); }
