#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prepare what `make demo`, `make test` or `make test-shell` needs, once: system packages, a virtual environment, hopsum.
# usage: tools/bootstrap.sh demo|dev|shell VENV [VERSION of torch, instead of that in constraints.txt]
# PYTHON=COMMAND makes the environment with another Python.
set -euo pipefail

kind=$1
venv=$2
torch=${3:-}
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
stamp="$venv/.hopsum-$kind"
constraints=constraints.txt
if [ -n "$torch" ]; then  # which brings its own triton
    constraints="$venv-constraints.txt"
    sed -e "s/^torch==.*/torch==$torch/" -e '/^triton==/d' constraints.txt >"$constraints"
fi
wanted_packages=("--editable" ".[$kind]")
if [ "$kind" = shell ]; then  # p4runtime-shell brings its own pins of these; the oldest grpcio is tested there too
    oldest=$(sed -nE 's/^dependencies = \["grpcio>=([0-9.]+)".*/\1/p' pyproject.toml)
    constraints="$venv-constraints.txt"
    sed -E -e '/^(protobuf|p4runtime|googleapis-common-protos)==/d' -e "s/^grpcio==.*/grpcio==$oldest/" constraints.txt >"$constraints"
    wanted_packages=("--editable" ".[shell,switch,ptf,scapy]" hypothesis pytest pytest-xdist)
fi
wanted=$(cat pyproject.toml "$constraints" tools/bootstrap.sh | sha256sum | cut -d' ' -f1)

say() { printf '==> %s\n' "$*"; }

# A finished set-up is recognised by its stamp; `dev` contains `demo`.
for done_stamp in "$stamp" "$venv/.hopsum-dev"; do
    if [ -f "$done_stamp" ] && [ "$(cat "$done_stamp")" = "$wanted" ]; then exit 0; fi
done

missing=()
need() {  # need PACKAGE COMMAND...: remember PACKAGE if COMMAND fails
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

need python3 "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'
need python3-venv "$python" -c 'import ensurepip, venv'
if [ "$kind" != demo ]; then
    # the package test framework (ptf) builds netifaces from source
    need gcc sh -c 'command -v gcc'
    need python3-dev "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))'
    need libc6-dev test -e /usr/include/stdlib.h
fi
# The demo of a user who cannot install it runs on loopback, and says so.
if [ "$kind" != demo ] || [ "$(id -u)" = 0 ]; then
    need iproute2 sh -c 'command -v ip && command -v tc'
fi

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing system packages: ${missing[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    else
        printf 'hopsum needs these system packages, and only root can install them: %s\n' "${missing[*]}" >&2
        printf 'On Debian or Ubuntu: sudo apt-get install %s\n' "${missing[*]}" >&2
        exit 1
    fi
fi

if [ ! -x "$venv/bin/python" ]; then
    say "creating the virtual environment $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
if [ "$kind" != shell ] && [ -e "$venv/bin/p4runtime-sh" ]; then  # of an earlier commit, with pins of that time
    "$venv/bin/python" -m pip uninstall -qq --yes --disable-pip-version-check p4runtime-shell
fi
say "installing hopsum[$kind] and its pinned dependencies into $venv (once; a minute or two)"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --progress-bar off --no-compile \
    --constraint "$constraints" "${wanted_packages[@]}"
# pip would compile all of it on one core. Some files of packages are templates, which is no failure.
"$venv/bin/python" -m compileall -qq -j 0 "$venv/lib" || true
"$venv/bin/python" -m pip check --disable-pip-version-check >/dev/null
printf '%s' "$wanted" >"$stamp"
say "ready"
