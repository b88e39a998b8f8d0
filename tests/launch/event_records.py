"""Records in the files of TensorBoard, and a file of W&B."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

WANDB_FILE = zlib.decompress(
    base64.b85decode(
        "c-p;`O=uHA6vs39TqkK81`Tz+XsT5k+|KOx>cx+<$0F22$Zj@tYj(3uHqA;1njk`}2NgY7FBV0x7r|RWJy^lwLGb3a;8{>n)RU7a"
        "m=(qJlDW;idGGiCzhU0dGm|H`o`vpi@@uC<fC0}_5HgFh<u+9P{2Dk0H8_nqfp9oSq>^grhNO}rF(jj8$fiI_vZ{-!UMv#9Fb%#~"
        "<P8+ZoPs$#^JM+8PiuxdU^JW3@SI(@?FJ!^AAl@_nco{0xY;o{0^|8c!71t;5N@{S!;AJZNHR-b9=(mHzusS;S^-%$yccBS0!Ij^"
        "OvQgHoKKZ4r|uu|RXHz<$K5NpS&EPF8MqUstL8%8s+zXxcs0)Ry>al)is%Bp5Dmzg9ia5RPrI!g&5W@J;V$$`D@s)Bj%V3s2LKF5"
        "A(QXhKjkyuFVKuQ+k^)Y%y-XgUcq)dAVV>lq=^cz2oe!AnODpl*5EkmtB}N;$P<MZWRbumisfsb>GnWr1ifm(a;D3bT8*Cc!lqj>"
        "=6c~2ih8E+bwDIr$ez9QaI#HRBv30D7^)@|YR|qt)a@TLaQ_Z}SiRF#zJqP`qX<MnR0MNUKa6b0r>F>;`VXHx7DOVF2QT##m#Gej"
        "+F;o1fN>ONz{fYA)7>^E2X5oWsfE?+G$X}c1%CsHsz@}gAH>6bL6?Yrh(A`pX?|O#HCdFqrZ?2Yt6Nmp2)YIaOc{!N+U4;3i9Jn;"
        "Y8wrXiT!Le4gNPMmNqYb>%P#~z%LYgadTyYW~6&Vlc?A~S1A-E!!HN$H$dnI1Wj~^"
    )
)
"""A file of wandb 0.31.0: `log({"train/loss": 1 / (step + 1), "epoch": step, "text": "a"})` in three steps."""


def varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def event(tag: str, step: int, value: bytes) -> bytes:
    return varint(2 << 3) + varint(step) + field(5, field(1, field(1, tag.encode()) + value))


def simple(value: float) -> bytes:
    return varint(2 << 3 | 5) + struct.pack("<f", value)


def tf_record(content: bytes) -> bytes:
    return struct.pack("<QI", len(content), 0) + content + bytes(4)


def log(folder: Path, pid: int, **steps_and_losses: tuple[int, float]) -> None:
    """Write a file of TensorBoard, named as the process writes it: a step and loss of each tag."""
    folder.mkdir(parents=True)
    content = b"".join(tf_record(event(tag, step, simple(loss))) for tag, (step, loss) in steps_and_losses.items())
    (folder / f"events.out.tfevents.17.host.{pid}.0").write_bytes(content)
