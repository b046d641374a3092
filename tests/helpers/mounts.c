/* A mount that behaves as some do, for the folder MOUNT: loaded before the C library.

   FLOCK_ERRNO=N   flock(2) fails with that errno: a file system without locks of files.
   READERS=PID,... as NFS: a file that one of these processes or this one has open or mapped is
                   renamed to .nfs... when it is removed or replaced; to remove it under that name
                   is EBUSY. Two names cannot be exchanged.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static int below_mount(const char *path) {
  const char *mount = getenv("MOUNT");
  return mount && !strncmp(path, mount, strlen(mount));
}

int flock(int fd, int operation) {
  const char *code = getenv("FLOCK_ERRNO");
  if (code) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
      path[length] = 0;
      if (below_mount(path)) {
        errno = atoi(code);
        return -1;
      }
    }
  }
  return syscall(SYS_flock, fd, operation);
}

/* Whether a process has the file of this real path open or mapped. */
static int uses(const char *pid, const char *path) {
  char name[PATH_MAX], line[PATH_MAX + 200];
  snprintf(name, sizeof name, "/proc/%s/maps", pid);
  FILE *maps = fopen(name, "re");
  int found = 0;
  while (maps && !found && fgets(line, sizeof line, maps)) {
    line[strcspn(line, "\n")] = 0;
    char *at = strchr(line, '/');
    found = at && !strcmp(at, path);
  }
  if (maps)
    fclose(maps);
  snprintf(name, sizeof name, "/proc/%s/fd", pid);
  DIR *folder = found ? NULL : opendir(name);
  struct dirent *entry;
  while (folder && !found && (entry = readdir(folder))) {
    char target[PATH_MAX];
    ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
    if (length > 0) {
      target[length] = 0;
      found = !strcmp(target, path);
    }
  }
  if (folder)
    closedir(folder);
  return found;
}

/* As in unlinkat: the real path of an entry, if it is a regular file below MOUNT that is in use. */
static int in_use(int dirfd, const char *name, char *path) {
  const char *readers = getenv("READERS");
  struct stat status;
  if (!readers || fstatat(dirfd, name, &status, AT_SYMLINK_NOFOLLOW) || !S_ISREG(status.st_mode))
    return 0;
  char joined[PATH_MAX], parent[PATH_MAX];
  if (name[0] == '/' || dirfd == AT_FDCWD) {
    snprintf(joined, sizeof joined, "%s", name);
  } else {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
    ssize_t length = readlink(link, joined, sizeof joined - 1);
    if (length < 0)
      return 0;
    snprintf(joined + length, sizeof joined - length, "/%s", name);
  }
  char *slash = strrchr(joined, '/');
  const char *base = slash ? slash + 1 : joined;
  char copy[PATH_MAX];
  snprintf(copy, sizeof copy, "%s", slash ? joined : ".");
  if (slash)
    copy[slash - joined] = 0;
  if (!realpath(copy[0] ? copy : "/", parent))
    return 0;
  if (snprintf(path, PATH_MAX, "%s/%s", parent, base) >= PATH_MAX)
    return 0;
  if (!below_mount(path))
    return 0;
  if (uses("self", path))
    return 1;
  char pids[1000], *rest = pids, *pid;
  snprintf(pids, sizeof pids, "%s", readers);
  while ((pid = strsep(&rest, ",")))
    if (*pid && uses(pid, path))
      return 1;
  return 0;
}

static int silly_rename(const char *path) {
  static int count;
  char name[PATH_MAX];
  const char *base = strrchr(path, '/') + 1;
  if (!strncmp(base, ".nfs", 4)) {
    errno = EBUSY;
    return -1;
  }
  snprintf(name, sizeof name, "%.*s.nfs%08x%08x", (int)(base - path), path, getpid(),
           __sync_add_and_fetch(&count, 1));
  return syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, name, 0);
}

int unlinkat(int dirfd, const char *name, int flags) {
  char path[PATH_MAX];
  if (!(flags & AT_REMOVEDIR) && in_use(dirfd, name, path))
    return silly_rename(path);
  return syscall(SYS_unlinkat, dirfd, name, flags);
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }

int remove(const char *name) {
  if (!unlinkat(AT_FDCWD, name, 0))
    return 0;
  return errno == EISDIR ? unlinkat(AT_FDCWD, name, AT_REMOVEDIR) : -1;
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
  char path[PATH_MAX];
  if (flags && getenv("READERS") && below_mount(from)) {
    errno = EINVAL;
    return -1;
  }
  if (!flags && in_use(to_dir, to, path) && silly_rename(path))
    return -1;
  return syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
  return renameat2(from_dir, from, to_dir, to, 0);
}

int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
