# Starts and stops the background processes of the stack by pid file. The scripts beside this file source it.
#
# A pid file holds the pid and the start time of a process, so that a reused pid is recognised, and never killed.
# shellcheck shell=bash

stack_source=$(CDPATH='' cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(CDPATH='' cd -P -- "$stack_source/../.." && pwd)
stack=${KEYSCALE_STACK_DIR:-$root/.keyscale/stack}
venv=${KEYSCALE_VENV:-$root/.venv}

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
  say "$@"
  exit 1
}
# Exits with 2, as usual; the caller defines usage().
wrong_usage() {
  [[ $# == 0 ]] || say "$@"
  usage >&2
  exit 2
}

# Prints the kernel's start time of the process PID (clock ticks since boot); fails if the process is gone or a zombie.
start_time() {
  local line
  { line=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  line=${line##*) } # the name before it may hold spaces and parentheses
  local -a fields
  read -ra fields <<<"$line"
  [[ ${fields[0]} != Z ]] || return 1
  printf '%s\n' "${fields[19]}"
}

# daemon_pid NAME: prints the pid of the running daemon, or fails.
daemon_pid() {
  local pid='' started='' now
  { read -r pid started <"$stack/$1.pid"; } 2>/dev/null || return 1
  now=$(start_time "$pid") || return 1
  [[ $now == "$started" ]] || return 1
  printf '%s\n' "$pid"
}

# start_daemon NAME COMMAND...: starts it in the background, in its own session, with its output in NAME.log.
start_daemon() {
  local name=$1 pid
  shift
  if pid=$(daemon_pid "$name"); then
    say "$name is already running (pid $pid)"
    return
  fi
  mkdir -p -- "$stack"
  setsid -- "$@" </dev/null >"$stack/$name.log" 2>&1 &
  pid=$!
  local started
  started=$(start_time "$pid") || die "$name ended at once; its log: $stack/$name.log"
  printf '%s %s\n' "$pid" "$started" >"$stack/$name.pid"
}

# wait_until_ready NAME SECONDS COMMAND...: waits until COMMAND succeeds; shows the end of the log if the daemon dies or
# is too slow.
wait_until_ready() {
  local name=$1 deadline=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ! daemon_pid "$name" >/dev/null; then
      tail -n 20 -- "$stack/$name.log" >&2
      rm -f -- "$stack/$name.pid"
      die "$name ended before it was ready; its log: $stack/$name.log"
    fi
    if ((SECONDS >= deadline)); then
      tail -n 20 -- "$stack/$name.log" >&2
      die "$name was not ready in time; its log: $stack/$name.log"
    fi
    sleep 0.1
  done
}

# stop_daemon NAME [SIGNAL]: ends a running daemon by a signal, and kills it after 20 s.
stop_daemon() {
  local name=$1 signal=${2:-TERM} pid deadline=$((SECONDS + 20))
  if ! pid=$(daemon_pid "$name"); then
    rm -f -- "$stack/$name.pid"
    return
  fi
  kill -"$signal" "$pid" 2>/dev/null || true
  while daemon_pid "$name" >/dev/null; do
    if ((SECONDS >= deadline)); then
      say "$name did not end by itself; killing it"
      kill -KILL "$pid" 2>/dev/null || true
    fi
    sleep 0.1
  done
  rm -f -- "$stack/$name.pid"
}

# report_daemon NAME: prints one line of status; fails if it does not run.
report_daemon() {
  local pid
  if pid=$(daemon_pid "$1"); then
    printf '%s: running (pid %s)\n' "$1" "$pid"
  else
    printf '%s: stopped\n' "$1"
    return 1
  fi
}

# is_listening PORT: succeeds if a program on 127.0.0.1 accepts connections there.
is_listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# refuse_taken_port NAME PORT: fails if another program listens there, to avoid mistaking it for the daemon.
refuse_taken_port() {
  if ! daemon_pid "$1" >/dev/null && is_listening "$2"; then
    die "port $2 on 127.0.0.1 is taken by another program; choose another one (see: ${0##*/} --help)"
  fi
}

check_number() { # VALUE WHAT
  [[ $1 =~ ^[1-9][0-9]{0,8}$ ]] || wrong_usage "$2 must be a whole number above 0, not '$1'"
}

check_port() { # VALUE
  check_number "$1" "a port"
  ((10#$1 <= 65535)) || wrong_usage "a port is at most 65535, not '$1'"
}

# secret NAME: prints a random secret, created at first use and readable only by its owner.
secret() {
  local file=$stack/$1.secret
  if [[ ! -s $file ]]; then
    mkdir -p -- "$stack"
    (
      umask 077
      od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$file.$$"
    )
    mv -n -- "$file.$$" "$file" # of two first uses at once, one secret wins
    rm -f -- "$file.$$"
  fi
  cat -- "$file"
}
