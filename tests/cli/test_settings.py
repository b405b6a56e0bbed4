"""Who wins, where it came from, and what a wrong setting says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass import settings
from windlass.errors import Invalid
from windlass.settings import Address

SECRET = "postgresql://ada:very-secret@db.example:5432/shop"


def load(folder: Path, flags: dict[str, Any] | None = None, **environment: str) -> settings.Loaded:
    return settings.load(flags, environment=environment, folder=folder)


def test_without_anything_everything_is_the_default(tmp_path: Path) -> None:
    loaded = load(tmp_path)

    assert loaded.settings == settings.Settings()
    assert {str(origin) for origin in loaded.origins.values()} == {"default"}
    assert loaded.settings.http == Address("127.0.0.1", 8420)
    assert loaded.settings.grpc == Address("127.0.0.1", 50051)


def test_a_flag_beats_the_environment_beats_the_file_beats_pyproject_beats_the_default(tmp_path: Path) -> None:
    seen = []

    def see(flags: dict[str, Any] | None = None, **environment: str) -> None:
        loaded = load(tmp_path, flags, **environment)
        seen.append((str(loaded.settings.http), str(loaded.origins["http"])))

    see()
    (tmp_path / "pyproject.toml").write_text('[tool.windlass]\nhttp = "h:1"\n[tool.other]\nx = 1\n')
    see()
    (tmp_path / "windlass.toml").write_text('http = "h:2"\n')
    see()
    see(WINDLASS_HTTP="h:3")
    see({"http": "h:4"}, WINDLASS_HTTP="h:3")
    see({"http": None}, WINDLASS_HTTP="h:3")

    assert seen == [
        ("127.0.0.1:8420", "default"),
        ("h:1", "tool.windlass.http in pyproject.toml"),
        ("h:2", "http in windlass.toml"),
        ("h:3", "WINDLASS_HTTP"),
        ("h:4", "--http"),
        ("h:3", "WINDLASS_HTTP"),
    ]


def test_database_url_is_read_under_the_name_that_everybody_uses_and_under_ours(tmp_path: Path) -> None:
    other, ours = "postgresql://a/b", "postgresql://c/d"

    assert load(tmp_path, DATABASE_URL=other).settings.database_url == other
    assert load(tmp_path, DATABASE_URL=other, WINDLASS_DATABASE_URL=ours).settings.database_url == ours


def test_the_names_of_the_registry_contract_are_read_too(tmp_path: Path) -> None:
    given = {
        "KAGZI_SCHEDULER_INTERVAL_SECS": "7", "KAGZI_SCHEDULER_BATCH_SIZE": "20",
        "KAGZI_SCHEDULER_MAX_WORKFLOWS_PER_TICK": "30", "WINDLASS_SCHEDULER_BATCH": "21",
    }  # fmt: skip
    known = load(tmp_path, **given).settings
    assert (known.scheduler_interval_s, known.scheduler_batch, known.scheduler_fires_max) == (7.0, 21, 30)
    for wrong in ("0", "-1", "many", "1.5", "9" * 30):
        with pytest.raises(Invalid, match="KAGZI_SCHEDULER_BATCH_SIZE"):
            load(tmp_path, KAGZI_SCHEDULER_BATCH_SIZE=wrong)


def test_a_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    (tmp_path / "windlass.toml").write_text('namespace = "here"\n')
    (tmp_path / "other.toml").write_text('namespace = "there"\n')

    assert load(tmp_path, WINDLASS_CONFIG=str(tmp_path / "other.toml")).settings.namespace == "there"
    with pytest.raises(Invalid, match=r"there is no file .*nothing.toml .set by WINDLASS_CONFIG"):
        load(tmp_path, WINDLASS_CONFIG=str(tmp_path / "nothing.toml"))


# ----------------------------------------------------------------------------------------------- secrets


def test_a_secret_may_be_mounted_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("wl_123\n")
    (tmp_path / "windlass.toml").write_text('api_key_file = "key"\n')

    in_file = load(tmp_path)
    assert (in_file.settings.api_key, str(in_file.origins["api_key"])) == ("wl_123", "api_key_file in windlass.toml")
    mounted = load(tmp_path, WINDLASS_API_KEY_FILE=str(tmp_path / "key"))
    assert (mounted.settings.api_key, str(mounted.origins["api_key"])) == ("wl_123", "WINDLASS_API_KEY_FILE")
    (tmp_path / "url").write_text(SECRET)
    assert load(tmp_path, DATABASE_URL_FILE=str(tmp_path / "url")).settings.database_url == SECRET


def test_a_secret_given_twice_or_not_to_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="both WINDLASS_API_KEY and WINDLASS_API_KEY_FILE are set"):
        load(tmp_path, WINDLASS_API_KEY="a", WINDLASS_API_KEY_FILE="b")
    with pytest.raises(Invalid, match=r"cannot be read: No such file or directory .set by WINDLASS_API_KEY_FILE"):
        load(tmp_path, WINDLASS_API_KEY_FILE=str(tmp_path / "none"))


def test_what_is_secret_is_not_shown(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"api_key": "wl_123"}, DATABASE_URL=SECRET)

    shown = {name: loaded.shown(name) for name in settings.names()}
    assert shown["api_key"] == settings.MASK
    assert shown["database_url"] == "postgresql://ada:***@db.example:5432/shop"
    assert "very-secret" not in str(shown)
    assert "wl_123" not in str(shown)


@pytest.mark.parametrize(
    "url",
    ["postgresql://a@b/c?passwords=2", "postgresql:///c?host=/tmp", "postgresql://b/c", "postgresql://[::1]:5432/c"],
)
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert settings.without_password(url) == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada@b/c?password=very-secret", "postgresql://ada@b/c?password=***"),
        ("postgresql://ada:x@b/c?a=1&Password=very-secret&d=2", "postgresql://ada:***@b/c?a=1&Password=***&d=2"),
        ("postgresql://b/c?sslpassword=very-secret", "postgresql://b/c?sslpassword=***"),
    ],
)
def test_a_password_is_hidden_wherever_in_a_url_it_is(url: str, shown: str) -> None:
    assert settings.without_password(url) == shown


# ----------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('htpp = "h:1"', "htpp in windlass.toml is not a setting; did you mean http?"),
        ("frobnicate = 1", "frobnicate in windlass.toml is not a setting. Settings are: database_url, data_dir"),
        ('namespace_file = "x"', "namespace_file in windlass.toml is not a setting"),
        ("http = 8420", "http: must be HOST:PORT, such as 127.0.0.1:8420 (set by http in windlass.toml)"),
        ('pooled = "perhaps"', "pooled: must be true or false (set by pooled in windlass.toml)"),
        ('log-format = "xml"', "log_format: must be text or json (set by log-format in windlass.toml)"),
        ("= nonsense", "windlass.toml cannot be read as TOML"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "windlass.toml").write_text(text)

    with pytest.raises(Invalid) as refused:
        load(tmp_path)
    assert says in refused.value.message


def test_an_unknown_key_in_pyproject_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.windlass]\nname-space = 'a'\n")

    with pytest.raises(Invalid, match=r"tool.windlass.name-space in pyproject.toml .* did you mean namespace\?"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("WINDLASS_HTTP", "8420", "http: must be HOST:PORT"),
        ("WINDLASS_HTTP", "::1:80", "http: must be HOST:PORT"),
        ("WINDLASS_HTTP", "h:70000", "http: the port must be at most 65535"),
        ("WINDLASS_KEEP_FINISHED_S", "-1", "keep_finished_s: must lie between 0 and"),
        ("WINDLASS_KEEP_FINISHED_S", "nan", "keep_finished_s: must lie between 0 and"),
        ("WINDLASS_KEEP_FINISHED_S", "a week", "keep_finished_s: must be a number"),
        ("WINDLASS_NAMESPACE", " ", "namespace: must be text, and not empty"),
        ("WINDLASS_URL", "localhost:8420", "url: must begin with http:// or https://"),
        ("WINDLASS_METRICS", "maybe", "metrics: must be true or false"),
        ("WINDLASS_LOG_LEVEL", "loud", "log_level: must be debug or info or warning or error"),
        ("DATABASE_URL", "mysql://x", "database_url: must begin with postgresql://"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, name: str, value: str, says: str) -> None:
    with pytest.raises(Invalid) as refused:
        load(tmp_path, **{name: value})
    assert refused.value.message.startswith(says)
    assert refused.value.message.endswith(f"(set by {name})")


def test_a_wrong_secret_is_named_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        load(tmp_path, DATABASE_URL="mysql://ada:very-secret@x")
    assert "very-secret" not in str(refused.value.__dict__)


def test_a_misspelt_variable_is_noticed_and_others_are_left_alone() -> None:
    variables = {"WINDLASS_HTP": "x", "WINDLASS_TEST_PG": "16", "WINDLASS_HTTP": "h:1", "PATH": "/bin"}

    assert settings.misspelt(variables) == {"WINDLASS_HTP": "WINDLASS_HTTP"}


@pytest.mark.parametrize("text", ["127.0.0.1:8420", "localhost:0", "[::1]:8420"])
def test_an_address_reads_as_it_is_written(text: str) -> None:
    assert str(settings.read_address(text)) == text


@pytest.mark.parametrize(
    ("http", "url", "found"),
    [
        ("127.0.0.1:9000", None, "http://127.0.0.1:9000"),
        ("0.0.0.0:9000", None, "http://127.0.0.1:9000"),
        ("[::]:9000", None, "http://[::1]:9000"),
        ("127.0.0.1:9000", "https://windlass.example", "https://windlass.example"),
    ],
)
def test_commands_find_the_server_of_this_machine_unless_told_otherwise(
    tmp_path: Path, http: str, url: str | None, found: str
) -> None:
    assert load(tmp_path, {"http": http, "url": url}).settings.api_url == found


def test_an_empty_variable_counts_as_unset() -> None:
    """As Compose and Kubernetes leave it when what it is made from is not set."""
    nothing: dict[str, str] = {}
    for name in settings.names():
        for variable in (f"WINDLASS_{name.upper()}", settings.setting(name).alias):
            if variable is not None:
                nothing |= {variable: "", f"{variable}_FILE": ""}
    loaded = settings.load(environment=nothing, folder=Path("/"))

    assert loaded.settings == settings.Settings()
    assert set(loaded.origins.values()) == {"default"}
    one = {"WINDLASS_DATABASE_URL": "", "DATABASE_URL": "postgresql://other"}
    assert settings.load(environment=one, folder=Path("/")).settings.database_url == "postgresql://other"
