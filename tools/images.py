"""Builds the container images of the operator and of jobs with whichever builder is there: buildah, podman or docker.

Run by `make images`, as `python tools/images.py [--base IMAGE] [--torch 2.13|none] [--archives FOLDER] [operator]
[trainer]`. The Containerfiles stand alone; what is added here is a base where no registry can be reached (a Debian of
this machine's package mirror), the settings that pip has on this machine, and the time that makes two builds alike.
"""

import argparse
import configparser
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `python tools/images.py`
from tools.version import version

ROOT = Path(__file__).resolve().parent.parent
FILES = {"operator": ROOT / "operators" / "Containerfile", "trainer": ROOT / "components" / "Containerfile"}
DEFAULT_BASE = "docker.io/library/python:3.11-slim"
LOCAL_BASE = "localhost/muster-base:bookworm"
PULL_S = 60
_DEBIAN = ("bookworm", "python3,python3-venv,ca-certificates")
_EXCLUDED_PATHS = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
_CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")


class Unavailable(Exception):
    """Something that a build needs is not on this machine; the message says what, and how to get it."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How images are to be built. `base` empty: the usual one, or one made here where no registry answers."""

    tag: str
    base: str = ""
    torch: str = "none"
    revision: str = "unknown"
    epoch_s: int = 0


@dataclass(frozen=True, slots=True)
class Builder:
    """buildah, podman or docker."""

    program: str

    @classmethod
    def find(cls) -> "Builder":
        """The first that is there and works. Unavailable where there is none."""
        for program in ("buildah", "podman"):
            if shutil.which(program):
                return cls(program)
        if shutil.which("docker"):
            if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
                return cls("docker")
            raise Unavailable("docker is here, but its daemon does not answer; start it, or: apt-get install buildah")
        raise Unavailable(
            "no program builds container images here: install buildah, podman or docker, e.g. apt-get install buildah"
        )

    def run(self, *arguments: str, timeout_s: float | None = None) -> str:
        """Run it; its standard output. CalledProcessError where it fails."""
        command = [self.program, *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=True).stdout.strip()

    def has(self, image: str) -> bool:
        """Whether the image is on this machine."""
        verb = ["inspect", "--type", "image"] if self.program == "buildah" else ["image", "inspect"]
        return subprocess.run([self.program, *verb, image], capture_output=True, check=False).returncode == 0

    def build(self, name: str, base: str, options: BuildOptions) -> str:
        """Build operator or trainer; the image's name."""
        image = f"localhost/muster-{name}:{options.tag}"
        given = {"BASE": base, "REVISION": options.revision, "VERSION": options.tag}
        if name == "trainer":
            given["TORCH"] = options.torch
        flags = [flag for key, value in given.items() for flag in ("--build-arg", f"{key}={value}")]
        if self.program == "docker":
            flags += ["--build-arg", f"SOURCE_DATE_EPOCH={options.epoch_s}", "--network", "host", "--no-cache"]
        else:
            # What is built is our own: a change of root keeps it apart enough, and needs no container runtime.
            # Only docker's format knows health checks. No layer of an earlier build is kept or taken.
            flags += ["--isolation", "chroot", "--network", "host", "--format", "docker"]
            flags += ["--timestamp", str(options.epoch_s), "--pull-never"]
        with _pip_secrets() as secrets:
            verb = ["bud"] if self.program == "buildah" else ["build"]
            self.run(*verb, "--quiet", *flags, *secrets, "-t", image, "-f", str(FILES[name]), str(ROOT))
        return image

    def save(self, image: str, archive: Path) -> None:
        """Write an image to a file that `docker load`, `podman load` and `ctr images import` take."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.unlink(missing_ok=True)
        if self.program == "buildah":
            self.run("push", "--quiet", image, f"docker-archive:{archive}:{image}")
        else:
            self.run("save", "--output", str(archive), image)

    def select_base(self, requested: str) -> str:
        """The base image: `--base` if given, else the default, else one built from the package mirror."""
        if requested:
            if not self.has(requested):
                self.run("pull", "--quiet", requested)
            return requested
        if self.has(DEFAULT_BASE):
            return DEFAULT_BASE
        if self.has(LOCAL_BASE):
            return LOCAL_BASE
        try:
            command = [self.program, "pull", "--quiet", DEFAULT_BASE]
            subprocess.run(command, capture_output=True, text=True, timeout=PULL_S, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            output = str(error.stderr or error).strip().splitlines()
            log(f"no registry: {output[-1] if output else error}")
        else:
            return DEFAULT_BASE
        self._import(build_debian_base())
        return LOCAL_BASE

    def _import(self, archive: Path) -> None:
        if self.program != "buildah":
            self.run("import", str(archive), LOCAL_BASE)
            return
        container = self.run("from", "scratch")
        self.run("add", "--quiet", container, str(archive), "/")
        self.run("commit", "--quiet", "--rm", "--timestamp", "0", container, LOCAL_BASE)


def build_debian_base() -> Path:
    """An archive with a small Debian and its Python, made once and kept in the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    suite, packages = _DEBIAN
    archive = home / "muster" / "images" / f"{suite}.tar"
    if archive.exists():
        return archive
    if not shutil.which("mmdebstrap"):
        raise Unavailable(
            "no registry can be reached, and a base cannot be made here: apt-get install mmdebstrap "
            "debian-archive-keyring; or name a base that is here with BASE=IMAGE"
        )
    if os.geteuid() != 0:
        raise Unavailable(
            "no registry can be reached, and a base can be made only as root; or name one with BASE=IMAGE"
        )
    log(f"making a base from Debian {suite} with mmdebstrap ...")
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_name(f".{os.getpid()}.{archive.name}")
    skip = [f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED_PATHS]
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", *skip, suite, str(draft)]
    try:
        subprocess.run(command, env={**os.environ, "SOURCE_DATE_EPOCH": "0"}, check=True)
        draft.replace(archive)
    finally:
        draft.unlink(missing_ok=True)
    return archive


@contextmanager
def _pip_secrets() -> Iterator[list[str]]:
    """Flags that show a build how pip reaches packages on this machine."""
    with tempfile.TemporaryDirectory(prefix="muster-images-") as folder:
        command = [sys.executable, "-m", "pip", "config", "list"]
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        # `global.timeout='180'`, and `:env:.timeout='180'` for a variable, which counts more.
        known = dict(line.partition("=")[::2] for line in lines)
        settings = {key: known.get(f":env:.{key}", known.get(f"global.{key}", "")).strip("'") for key in _PIP_SETTINGS}
        named = (known.get(":env:.cert") or known.get("global.cert") or "").strip("'")
        certificates = next((path for name in _CERTIFICATES if (path := os.environ.get(name))), named)
        flags = []
        section = {key: value.replace("\\n", "\n") for key, value in settings.items() if value}
        if certificates and Path(certificates).is_file():
            section["cert"] = "/run/secrets/certificates.pem"
            flags += ["--secret", f"id=certificates.pem,src={certificates}"]
        config = configparser.RawConfigParser()
        config["global"] = section
        with Path(folder, "pip.conf").open("w") as file:
            config.write(file)
        yield ["--secret", f"id=pip.conf,src={folder}/pip.conf", *flags]


def log(line: str) -> None:
    """Print a line of progress at once."""
    print(f"images: {line}", file=sys.stderr, flush=True)


def build_images(names: list[str], options: BuildOptions, archives: Path | None = None) -> list[str]:
    """Build the images named, and write them to archives where a folder is given; their names."""
    builder = Builder.find()
    base = builder.select_base(options.base)
    images = []
    for name in names:
        log(f"building {name} on {base} with {builder.program} ...")
        images.append(builder.build(name, base, options))
        if archives is not None:
            builder.save(images[-1], archives / f"muster-{name}.tar")
    return images


def git(*arguments: str) -> str:
    """What git answers about this checkout; "" where it is none."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python tools/images.py", description="Build the container images.")
    parser.add_argument("names", nargs="*", help="operator, trainer; default: both")
    parser.add_argument("--base", default="", help=f"default: {DEFAULT_BASE}, or a Debian made here without a registry")
    parser.add_argument("--tag", default=version(), help="default: the version of pyproject.toml")
    parser.add_argument(
        "--torch", default="2.13", help="of constraints/images/torch-*.txt, for the trainer; none: without"
    )
    parser.add_argument("--archives", type=Path, help="a folder to write muster-NAME.tar to")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in FILES]
    if unknown:
        parser.error(f"no image {unknown[0]!r}; there are: {', '.join(FILES)}")
    known = sorted(path.stem.removeprefix("torch-") for path in (ROOT / "constraints" / "images").glob("torch-*.txt"))
    if args.torch not in ("none", *known):
        parser.error(f"--torch {args.torch}: must be none or one of {', '.join(known)}")
    epoch_s = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct") or 0)
    options = BuildOptions(args.tag, args.base, args.torch, git("rev-parse", "HEAD") or "unknown", epoch_s)
    try:
        for image in build_images(args.names or list(FILES), options, args.archives):
            print(image)
    except Unavailable as error:
        log(str(error))
        return 1
    except subprocess.CalledProcessError as error:
        log(f"`{' '.join(map(str, error.cmd[:2]))}` ended with {error.returncode}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
