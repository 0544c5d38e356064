"""The tables of run.sqlite. All times are Unix seconds; `round` is 0 for what happened before round 1."""

__all__ = ["SCHEMA", "SCHEMA_VERSION"]

SCHEMA_VERSION = 8
"""Raise it when a table changes. We refuse stores of other versions rather than guess."""

SCHEMA = """
CREATE TABLE run (
    name TEXT NOT NULL,
    fleet TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    rounds INTEGER NOT NULL,
    created_at REAL NOT NULL,
    seen_at REAL NOT NULL,
    pid INTEGER NOT NULL,
    dense_bytes INTEGER NOT NULL,
    model_id TEXT NOT NULL,
    model_sha256 TEXT,
    artifacts_id TEXT NOT NULL DEFAULT '',
    began_from TEXT NOT NULL DEFAULT '',
    config TEXT NOT NULL
);
CREATE TABLE stretches (
    first_round INTEGER PRIMARY KEY,
    rounds INTEGER NOT NULL,
    config TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE TABLE devices (
    device TEXT PRIMARY KEY,
    online INTEGER NOT NULL,
    samples INTEGER NOT NULL,
    software TEXT NOT NULL,
    unfit TEXT NOT NULL DEFAULT '',
    quarantined_until INTEGER NOT NULL DEFAULT 0,
    quarantine TEXT NOT NULL DEFAULT '',
    alarm TEXT NOT NULL DEFAULT '',
    model_round INTEGER,
    predict_ms REAL,
    upgrade TEXT NOT NULL DEFAULT '',
    upgrade_reason TEXT NOT NULL DEFAULT '',
    seen_at REAL NOT NULL
);
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY,
    base_model_id TEXT NOT NULL,
    base_nonzeros INTEGER NOT NULL,
    learning_rate REAL NOT NULL,
    cohort TEXT NOT NULL,
    opened_at REAL NOT NULL,
    extensions INTEGER NOT NULL DEFAULT 0,
    closed_at REAL,
    seconds REAL,
    model_id TEXT,
    test_accuracy REAL,
    test_loss REAL,
    global_sparsity REAL
);
CREATE TABLE updates (
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    samples INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    position INTEGER NOT NULL,
    nonzeros INTEGER NOT NULL,
    signature TEXT NOT NULL DEFAULT '',
    accepted_at REAL NOT NULL,
    PRIMARY KEY (round, device)
);
CREATE TABLE reports (
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    pid INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    loss REAL NOT NULL,
    peak_rss_mb REAL NOT NULL,
    bytes_down INTEGER NOT NULL,
    bytes_up INTEGER NOT NULL,
    source TEXT NOT NULL,
    kind TEXT NOT NULL,
    hz REAL NOT NULL,
    idle_w REAL,
    regrown INTEGER,
    PRIMARY KEY (round, device)
);
CREATE TABLE metrics (
    round INTEGER NOT NULL,
    name TEXT NOT NULL,
    value REAL,
    PRIMARY KEY (round, name)
);
CREATE TABLE phases (
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    phase TEXT NOT NULL,
    seconds REAL NOT NULL,
    joules REAL,
    source TEXT NOT NULL,
    kind TEXT NOT NULL,
    PRIMARY KEY (round, device, phase)
);
CREATE TABLE evaluations (
    number INTEGER PRIMARY KEY,
    round INTEGER NOT NULL,
    model_id TEXT NOT NULL,
    asked INTEGER NOT NULL,
    begun_at REAL NOT NULL,
    ended_at REAL,
    figures TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE device_evaluations (
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    evaluation INTEGER NOT NULL,
    samples INTEGER NOT NULL,
    held_out INTEGER NOT NULL,
    loss REAL,
    accuracy REAL,
    own_loss REAL,
    own_accuracy REAL,
    seconds REAL,
    joules REAL,
    at REAL NOT NULL,
    PRIMARY KEY (evaluation, round, device)
);
CREATE TABLE data_notes (
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    samples INTEGER NOT NULL,
    added INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    removed INTEGER NOT NULL,
    broken INTEGER NOT NULL,
    trouble TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (round, device)
);
CREATE TABLE refusals (
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    kind TEXT NOT NULL,
    reason TEXT NOT NULL,
    count INTEGER NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (round, device, kind)
);
CREATE TABLE adjustments (
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    samples INTEGER NOT NULL,
    weight INTEGER NOT NULL,
    cut INTEGER NOT NULL,
    clipped REAL NOT NULL,
    PRIMARY KEY (round, device)
);
CREATE TABLE device_settings (
    device TEXT PRIMARY KEY,
    settings TEXT NOT NULL
);
CREATE TABLE requests (
    kind TEXT NOT NULL,
    device TEXT NOT NULL DEFAULT '',
    at REAL NOT NULL
);
"""
