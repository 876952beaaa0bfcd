"""Where engines may be sent: every spelling of an address that some client reads."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.intake.media_urls import BASE64_LEAST, MediaHosts

ANY = MediaHosts(("*",))
RELAYS = ip_network("192.88.99.0/24")  # of 6to4, which nobody runs any more
HOLDS_IPV4 = ip_network("::/8")  # with public ones among them

PASSES = [
    "data:image/png;base64,iVBORw0KGgo=",
    "DATA:,x",
    "https://example.org/a.png",
    "http://images.example.org:8080/a?b=http://127.0.0.1/#c",
    "HTTPS://EXAMPLE.ORG",
    "https://example.org./a.png",
    "https://example.org?x=1",
    "https://a_b.example.org/",
    "https://b\u00fccher.example/",
    "https://xn--bcher-kva.example/",
    "http://8.8.8.8/",
    "http://134744072/",  # the same
    "http://[2606:4700::1111]/",
    "http://[64:ff9b::808:808]/",
    "http://[2002:808:808::1]:80/",
    "https://127.0.0.1.example.org/",  # a name: what it resolves to is not seen here
    "QUJD" * (BASE64_LEAST // 4),
    "/9j/" + "QUJD" * (BASE64_LEAST // 4),  # a picture in base64 may begin so
    "",
]

REFUSED = {
    "loopback": [
        *("http://127.0.0.1/", "http://127.8.9.10", "http://127.1", "http://127.0.1:80/"),
        *("http://2130706433/", "http://017700000001/", "http://0x7f000001/", "http://0X7F.1/"),
        *("http://0x7f.0.0.0x1/", "http://0177.0.0.01/", "http://127.0.0.1./", "http://[::1]/"),
        *("http://[0:0:0:0:0:0:0:1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]:80/"),
        *("http://[::127.0.0.1]/", "http://[::ffff:0:127.0.0.1]/", "http://[64:ff9b::7f00:1]/"),
        *(
            "http://[2002:7f00:1::]/",
            "http://[2001:0:1::80ff:fffe]/",
            "http://\u2460\u2461\u2466.0.0.1",
        ),
        *("http://[2600::5efe:127.0.0.1]/", "http://127\u30020\u30020\u30021/"),
        *("http://\uff11\uff12\uff17.0.0.1/", "http://127\uff0e0\uff0e0\uff0e1/"),
        *("http://127\uff610\uff610\uff611/", "http://127\u00ad.0.0.1/", "http://12\u200b7.0.0.1/"),
    ],
    "private": [
        *("http://10.0.0.7/", "http://172.16.0.1/", "http://172.31.255.255", "http://192.168.1.1"),
        *("http://167772167/", "http://10.7/", "http://0xa.7/", "http://012.0.0.7/"),
        *("http://010.0.0.7/", "http://100.64.0.1/", "http://100.100.100.200/latest/meta-data"),
        *("http://[::ffff:10.0.0.7]/", "http://[64:ff9b::a00:7]/", "http://[2002:a00:7::]/"),
    ],
    "unique local": ["http://[fd00:ec2::254]/", "http://[fc00::1]/", "http://[64:ff9b:1::1]/"],
    "metadata": [
        *("http://169.254.169.254/latest/", "http://2852039166/", "http://0xa9fea9fe/"),
        *("http://0251.0376.0251.0376/", "http://169.254.43518/", "http://168.63.129.16/"),
        *("http://[::ffff:169.254.169.254]/", "http://192.0.0.192/"),
    ],
    "link-local": ["http://169.254.1.1/", "http://[fe80::1]/"],
    "unspecified": ["http://0.0.0.0/", "http://0/", "http://0x/", "http://[::]:80/"],
    "multicast": ["http://224.0.0.1/", "http://[ff02::1]/"],
    "reserved": [
        *("http://255.255.255.255/", "http://4294967295/", "http://240.0.0.1/"),
        *("http://198.51.100.1/", "http://[2001:db8::1]/", "http://[100::1]/", "http://[4000::]/"),
    ],
    "this machine": [
        *("http://localhost/", "HTTP://LocalHost:80", "http://localhost./", "http://a.localhost/"),
        *("\thttp://localhost/ ", "http://\uff4c\uff4f\uff43\uff41\uff4c\uff48ost/"),
    ],
    "private name": [
        *("http://minio:9000/a", "http://kubernetes.default.svc/", "http://metadata/"),
        *("http://metadata.google.internal/", "http://host.docker.internal/", "http://nas.local"),
        *("http://instance-data.ec2.internal/", "http://holdfast.holdfast.svc.cluster.local:8001/"),
    ],
    "plainly": [
        *("http://example.org@127.0.0.1/", "http://127.0.0.1@example.org/", "http://u:p@a.org/"),
        *("http://127.0.0.1\\@example.org/", "http:\\\\127.0.0.1\\", "http:/127.0.0.1/"),
        *("http:127.0.0.1/", "http:///127.0.0.1/", "http://", "http://%31%32%37.0.0.1/"),
        *("http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://127.0.0.1 .example.org/"),
        *("http://127.0.0.1\n/", "http://example.org\t.evil/", "http://a.org:80:80/"),
        *("http://[::1/", "http://::1/", "http://a.org:x/", "http://[::1].example.org/"),
    ],
    "scheme": [
        *("file:///etc/passwd", "FILE:/etc/passwd", "ftp://example.org/a", "gopher://a.org/"),
        *("s3://bucket/a.png", "unix:/run/docker.sock", "javascript:1", "blob:https://a.org/1"),
    ],
    "no URL": [
        *("/etc/passwd", "../a.png", "cat.png", "//127.0.0.1/a", "~/a.png", "example.org/a.png"),
        *("ht\ntp://127.0.0.1/", "/" + "a/" * BASE64_LEAST + "x.png"),
    ],
    "no name": ["http://a..org/", "http://.org/", "http://a.org\uff0fx/", "http://a!b.org/"],
    "no address": [
        *("http://256.0.0.1/", "http://1.2.3.4.5/", "http://4294967296/", "http://09.1.1.1.1/"),
        *("http://a.org.1/", "http://[1::2::3]/", "http://[:::]/"),
    ],
}


@pytest.mark.parametrize("url", PASSES, ids=lambda url: url[:40])
def test_data_and_public_hosts_pass(url):
    assert ANY.refusal(url) == ""


@pytest.mark.parametrize(
    ("kind", "url"), [(kind, url) for kind in REFUSED for url in REFUSED[kind]]
)
def test_what_is_not_public_is_refused_with_the_reason(kind, url):
    assert kind in ANY.refusal(url)


def test_a_list_narrows_to_its_hosts():
    hosts = MediaHosts(("images.example.org", "*.cdn.example.org", "8.8.8.0/24", "2606::/16"))
    for host in ("images.example.org", "Images.Example.ORG.", "a.cdn.example.org", "8.8.8.8"):
        assert hosts.refusal(f"https://{host}/a") == ""
    assert hosts.refusal("https://[2606::1]/a") == ""
    assert hosts.refusal("data:,x") == ""
    others = ("example.org", "x.images.example.org", "cdn.example.org", "acdn.example.org")
    for host in (*others, "9.9.9.9", "[2607::1]"):
        assert "not listed" in hosts.refusal(f"https://{host}/a")
    assert "loopback" in hosts.refusal("http://127.0.0.1/")
    assert "not listed" in MediaHosts(()).refusal("https://example.org/")


def test_a_list_opens_private_hosts_beside_public_ones():
    hosts = MediaHosts(("*", "minio", "nas.local", "10.1.0.0/16", "fd00::7"))
    for host in ("minio:9000", "nas.local", "10.1.2.3", "[::ffff:10.1.2.3]", "[fd00::7]", "a.org"):
        assert hosts.refusal(f"http://{host}/a") == ""
    for host in ("minio2", "b.nas.local", "10.2.0.1", "[fd00::8]", "localhost"):
        assert hosts.refusal(f"http://{host}/a")


@pytest.mark.parametrize("entry", ["", "http://a.org", "a.org/x", "a b", "1.2.3", "10.0.0.0/99"])
def test_what_is_no_host_is_no_entry(entry):
    with pytest.raises(ValueError, match=r"^"):
        MediaHosts((entry,))


def test_base64_as_it_is_passes_where_it_is_meant():
    assert ANY.refusal("UklGRg==", bare=True) == ""
    assert ANY.refusal("UklGRg==") == "it is no URL"
    assert ANY.refusal("file:///etc/passwd", bare=True)
    assert ANY.refusal("http://10.0.0.1/", bare=True)


# --- every spelling of every address --------------------------------------------------------------


def spellings(number: int) -> list[str]:
    """One IPv4 address as different clients read it."""
    a, b, c, d = number.to_bytes(4, "big")
    six = [f"::ffff:{a}.{b}.{c}.{d}", f"64:ff9b::{number:x}" if number < 1 << 16 else "", ""]
    high, low = number >> 16, number & 0xFFFF
    six[2] = f"64:ff9b::{high:x}:{low:x}"
    return [
        f"{a}.{b}.{c}.{d}",
        str(number),
        hex(number),
        f"0{number:o}",
        f"0x{a:X}.{b}.0{c:o}.{d}",
        f"{a}.{(b << 16) | (c << 8) | d}",
        f"{a}.{b}.{(c << 8) | d}",
        f"{a}.{b}.{c}.{d}.",
        *(f"[{one}]" for one in six if one),
        f"[2002:{high:x}:{low:x}::]",
        "".join(chr(ord(sign) + 0xFEE0) for sign in f"{a}.{b}.{c}.{d}"),
    ]


CLOSED = st.one_of(
    *(
        st.integers(int(IPv4Address(first)), int(IPv4Address(last)))
        for first, last in (
            ("10.0.0.0", "10.255.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("224.0.0.0", "255.255.255.255"),
        )
    )
)


@given(CLOSED, st.sampled_from(range(12)))
def test_no_spelling_of_a_closed_address_passes(number, which):
    every = spellings(number)
    assert ANY.refusal(f"http://{every[which % len(every)]}/a.png")


@given(st.integers(0, 2**32 - 1))
def test_an_address_passes_just_where_it_is_global(number):
    address = IPv4Address(number)
    known = str(address) == "168.63.129.16" or address in RELAYS
    told = ANY.refusal(f"http://{address}/")
    assert bool(told) is (not address.is_global or address.is_multicast or known)


@given(st.integers(0, 2**128 - 1))
def test_an_ipv6_address_that_passes_is_global(number):
    address = IPv6Address(number)
    if not ANY.refusal(f"http://[{address}]/"):
        assert address.is_global or address in HOLDS_IPV4


@given(st.text(max_size=40))
def test_any_text_is_judged_and_none_is_repeated(text):
    for url in (text, f"http://{text}", f"http://{text}/x", f"http://[{text}]"):
        told = ANY.refusal(url)
        assert isinstance(told, str)
        assert len(text) < 8 or text not in told


@given(st.integers(0, 2**32 - 1))
def test_what_is_listed_passes_in_any_spelling(number):
    hosts = MediaHosts((str(ip_address(number)),))
    for spelling in spellings(number)[:4]:
        if not spelling.startswith("0") or spelling.startswith("0x"):
            assert hosts.refusal(f"http://{spelling}/") == ""
