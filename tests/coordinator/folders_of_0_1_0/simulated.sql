BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE audit (
	number INTEGER NOT NULL, 
	run TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	"by" TEXT NOT NULL, 
	action TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (number), 
	CONSTRAINT fk_audit_run FOREIGN KEY(run) REFERENCES runs (run)
);
CREATE TABLE checkpoints (
	run TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	digest TEXT NOT NULL, 
	parent_version INTEGER, 
	round INTEGER, 
	origin TEXT NOT NULL, 
	bytes BIGINT NOT NULL, 
	optimizer TEXT, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_checkpoints PRIMARY KEY (run, version), 
	CONSTRAINT fk_checkpoints_parent FOREIGN KEY(run, parent_version) REFERENCES checkpoints (run, version), 
	CONSTRAINT fk_checkpoints_run FOREIGN KEY(run) REFERENCES runs (run), 
	CONSTRAINT uq_checkpoints_run_parent_version UNIQUE (run, parent_version)
);
INSERT INTO "checkpoints" VALUES('sim',0,'92d3d5190c09a48280915b8a516d73db1094d988b651da49c832de036f830151',NULL,NULL,'given',76,NULL,1.79537191661947774894e+09);
INSERT INTO "checkpoints" VALUES('sim',1,'358f9a6c2178e0f8e45b811e0d39149bf2a88196f12ecd4f67fbd4bedb91760f',0,1,'round 1',76,NULL,1.79537191866947770115e+09);
INSERT INTO "checkpoints" VALUES('sim',2,'940f81bf9247d044de7b9a1475d4302d9be11fe552640b0b09941998b368ede8',1,2,'round 2',76,NULL,1.79537192071947765349e+09);
CREATE TABLE claims (
	device TEXT NOT NULL, 
	run TEXT NOT NULL, 
	round INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	until DOUBLE NOT NULL, 
	CONSTRAINT pk_claims PRIMARY KEY (device), 
	CONSTRAINT fk_claims_device FOREIGN KEY(device) REFERENCES devices (device), 
	CONSTRAINT fk_claims_run FOREIGN KEY(run) REFERENCES runs (run)
);
CREATE TABLE contributions (
	run TEXT NOT NULL, 
	round INTEGER NOT NULL, 
	device TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	weight BIGINT NOT NULL, 
	version INTEGER NOT NULL, 
	CONSTRAINT pk_contributions PRIMARY KEY (run, round, device), 
	CONSTRAINT fk_contributions_run FOREIGN KEY(run) REFERENCES runs (run)
)
 WITHOUT ROWID

;
INSERT INTO "contributions" VALUES('sim',1,'client-0','9c470c99bc1b4ce407e48435927ad223d4a19e52a2209dfbf39a45b43ea9bba8',2,1);
INSERT INTO "contributions" VALUES('sim',1,'client-1','45dfb2e07f947b79bf5496bc59ea61ee6b0ddfd696f1c65682cf3528345f5372',2,1);
INSERT INTO "contributions" VALUES('sim',2,'client-0','4705eefa611712798a30368e211bb20d478eb835f4d6712de75f849f64747523',2,2);
INSERT INTO "contributions" VALUES('sim',2,'client-1','1a53899e18f10024a16523b2aa778a5280797e1cca90ddcec99724368d09fb4e',2,2);
CREATE TABLE devices (
	device TEXT NOT NULL, 
	public_key TEXT NOT NULL, 
	token_hash TEXT NOT NULL, 
	label TEXT NOT NULL, 
	examples_cap BIGINT NOT NULL, 
	enrolled_at DOUBLE NOT NULL, 
	last_seen_at DOUBLE, 
	CONSTRAINT pk_devices PRIMARY KEY (device), 
	CONSTRAINT uq_devices_public_key UNIQUE (public_key)
);
INSERT INTO "devices" VALUES('client-0','4113befa2ec933a77a0dd84eae32d3f6e0da3acf64b3de4cbd5d4f690ccf2e88','4113befa2ec933a77a0dd84eae32d3f6e0da3acf64b3de4cbd5d4f690ccf2e88','',2,1.79537191661947774894e+09,1.79537191661947774894e+09);
INSERT INTO "devices" VALUES('client-1','41a456520f27dc8882a4ad144671f4c67ae42b135c3c0a225b91dd257cb80005','41a456520f27dc8882a4ad144671f4c67ae42b135c3c0a225b91dd257cb80005','',2,1.79537191661947774894e+09,1.79537191661947774894e+09);
INSERT INTO "devices" VALUES('client-2','d49cf61a2e2031e9205952a450901282657f4b21e1880e0ed31bb4dc7f186030','d49cf61a2e2031e9205952a450901282657f4b21e1880e0ed31bb4dc7f186030','',2,1.79537191661947774894e+09,1.79537191661947774894e+09);
CREATE TABLE events (
	run TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	at DOUBLE NOT NULL, 
	kind TEXT NOT NULL, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (run, seq), 
	CONSTRAINT fk_events_run FOREIGN KEY(run) REFERENCES runs (run)
)
 WITHOUT ROWID

;
INSERT INTO "events" VALUES('sim',1,1.79537191661947774894e+09,'Created','{}');
INSERT INTO "events" VALUES('sim',2,1.79537191661947774894e+09,'Drawn','{"round":1,"cohort":[["client-0",2],["client-1",2],["client-2",2]],"waiting":3,"pool":"2a67a48a384e80172fff1396799fe6be9ef5a2291f8bd80a41620c175e5e17fb","others":"","unspendable":0}');
INSERT INTO "events" VALUES('sim',3,1.79537191661947774894e+09,'Started','{"round":1,"attempt":0,"device":"client-0"}');
INSERT INTO "events" VALUES('sim',4,1.79537191661947774894e+09,'Started','{"round":1,"attempt":0,"device":"client-1"}');
INSERT INTO "events" VALUES('sim',5,1.79537191661947774894e+09,'Started','{"round":1,"attempt":0,"device":"client-2"}');
INSERT INTO "events" VALUES('sim',6,1.79537191866947770115e+09,'Reported','{"round":1,"attempt":0,"device":"client-0","digest":"9c470c99bc1b4ce407e48435927ad223d4a19e52a2209dfbf39a45b43ea9bba8","bytes":380,"examples":2,"steps":0,"steps_planned":0,"complete":true,"metrics":{},"held_out":{},"held_out_examples":0,"seconds":[1.0,0.05,0.0]}');
INSERT INTO "events" VALUES('sim',7,1.79537191866947770115e+09,'Reported','{"round":1,"attempt":0,"device":"client-1","digest":"45dfb2e07f947b79bf5496bc59ea61ee6b0ddfd696f1c65682cf3528345f5372","bytes":380,"examples":2,"steps":0,"steps_planned":0,"complete":true,"metrics":{},"held_out":{},"held_out_examples":0,"seconds":[1.0,0.05,0.0]}');
INSERT INTO "events" VALUES('sim',8,1.79537191866947770115e+09,'Committed','{"round":1,"digest":"358f9a6c2178e0f8e45b811e0d39149bf2a88196f12ecd4f67fbd4bedb91760f","bytes":76,"optimizer":null}');
INSERT INTO "events" VALUES('sim',9,1.79537191866947770115e+09,'Drawn','{"round":2,"cohort":[["client-0",2],["client-1",2],["client-2",2]],"waiting":3,"pool":"2a67a48a384e80172fff1396799fe6be9ef5a2291f8bd80a41620c175e5e17fb","others":"","unspendable":0}');
INSERT INTO "events" VALUES('sim',10,1.79537191866947770115e+09,'Started','{"round":2,"attempt":0,"device":"client-0"}');
INSERT INTO "events" VALUES('sim',11,1.79537191866947770115e+09,'Started','{"round":2,"attempt":0,"device":"client-1"}');
INSERT INTO "events" VALUES('sim',12,1.79537191866947770115e+09,'Started','{"round":2,"attempt":0,"device":"client-2"}');
INSERT INTO "events" VALUES('sim',13,1.79537192071947765349e+09,'Reported','{"round":2,"attempt":0,"device":"client-0","digest":"4705eefa611712798a30368e211bb20d478eb835f4d6712de75f849f64747523","bytes":380,"examples":2,"steps":0,"steps_planned":0,"complete":true,"metrics":{},"held_out":{},"held_out_examples":0,"seconds":[1.0,0.05,0.0]}');
INSERT INTO "events" VALUES('sim',14,1.79537192071947765349e+09,'Reported','{"round":2,"attempt":0,"device":"client-1","digest":"1a53899e18f10024a16523b2aa778a5280797e1cca90ddcec99724368d09fb4e","bytes":380,"examples":2,"steps":0,"steps_planned":0,"complete":true,"metrics":{},"held_out":{},"held_out_examples":0,"seconds":[1.0,0.05,0.0]}');
INSERT INTO "events" VALUES('sim',15,1.79537192071947765349e+09,'Committed','{"round":2,"digest":"940f81bf9247d044de7b9a1475d4302d9be11fe552640b0b09941998b368ede8","bytes":76,"optimizer":null}');
CREATE TABLE metrics (
	run TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	source TEXT NOT NULL, 
	name TEXT NOT NULL, 
	value DOUBLE NOT NULL, 
	examples BIGINT NOT NULL, 
	at DOUBLE NOT NULL, 
	CONSTRAINT pk_metrics PRIMARY KEY (run, version, source, name), 
	CONSTRAINT fk_metrics_run FOREIGN KEY(run) REFERENCES runs (run)
);
CREATE TABLE refusals (
	number INTEGER NOT NULL, 
	run TEXT NOT NULL, 
	round INTEGER NOT NULL, 
	device TEXT NOT NULL, 
	digest TEXT, 
	kind TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	CONSTRAINT pk_refusals PRIMARY KEY (number), 
	CONSTRAINT fk_refusals_run FOREIGN KEY(run) REFERENCES runs (run)
);
INSERT INTO "refusals" VALUES(1,'sim',1,'client-2',NULL,'late','round 1 is over',1.79537191866947770115e+09);
CREATE TABLE rounds (
	run TEXT NOT NULL, 
	round INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	status TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	opened_at DOUBLE NOT NULL, 
	collecting_at DOUBLE, 
	closed_at DOUBLE, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_rounds PRIMARY KEY (run, round), 
	CONSTRAINT fk_rounds_run FOREIGN KEY(run) REFERENCES runs (run)
);
INSERT INTO "rounds" VALUES('sim',1,0,'federated','committed','',1.79537191661947774894e+09,1.79537191661947774894e+09,1.79537191866947770115e+09,'{"funnel":{"waiting":3,"selected":3,"training":3,"reported":2,"withdrawn":0},"bytes_in":760,"weight":4,"partial":0,"metrics":{},"version":1,"digest":"358f9a6c2178e0f8e45b811e0d39149bf2a88196f12ecd4f67fbd4bedb91760f","pool":"2a67a48a384e80172fff1396799fe6be9ef5a2291f8bd80a41620c175e5e17fb","cohort":["client-0","client-1","client-2"]}');
INSERT INTO "rounds" VALUES('sim',2,0,'federated','committed','',1.79537191866947770115e+09,1.79537191866947770115e+09,1.79537192071947765349e+09,'{"funnel":{"waiting":3,"selected":3,"training":3,"reported":2,"withdrawn":0},"bytes_in":760,"weight":4,"partial":0,"metrics":{},"version":2,"digest":"940f81bf9247d044de7b9a1475d4302d9be11fe552640b0b09941998b368ede8","pool":"2a67a48a384e80172fff1396799fe6be9ef5a2291f8bd80a41620c175e5e17fb","cohort":["client-0","client-1","client-2"]}');
INSERT INTO "rounds" VALUES('sim',3,0,'federated','open','',1.79537192071947765349e+09,NULL,NULL,'{"funnel":{"waiting":0,"selected":0,"training":0,"reported":0,"withdrawn":0},"bytes_in":0,"weight":0,"partial":0,"metrics":{},"version":null,"digest":null,"pool":null,"cohort":[]}');
CREATE TABLE runs (
	run TEXT NOT NULL, 
	name TEXT NOT NULL, 
	"plan" TEXT NOT NULL, 
	plan_digest TEXT NOT NULL, 
	selection_seed BIGINT NOT NULL, 
	init TEXT NOT NULL, 
	origin TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	seq BIGINT NOT NULL, 
	fence BIGINT NOT NULL, 
	snapshot_seq BIGINT NOT NULL, 
	snapshot TEXT, 
	CONSTRAINT pk_runs PRIMARY KEY (run)
);
INSERT INTO "runs" VALUES('sim','sim','{"name":"sim","task":{"learner":"simulation:learner","learner_version":null,"epochs":null,"steps":null,"batch_size":8,"learning_rate":0.1,"mu":0.0,"max_grad_norm":null,"time_budget_s":null,"codec":"float32@1","averaged":["*"],"seed":0,"score_held_out":false},"cohort":{"select":3,"goal":2,"quorum":0.5,"pool":null,"select_s":60.0,"collect_s":600.0,"choose":"uniform","min_examples":1},"aggregation":{"rule":"mean","weighting":"examples","weight_cap":10000,"partial":"full","clip_norm":null,"server_optimizer":"average","server_learning_rate":1.0},"finish":{"rounds":4,"metric":null,"source":"evaluator","better":"higher","target":null,"patience":null,"min_delta":0.0},"retention":{"rounds":0}}','c294c46d35028245f9991dd266f0bfe64fb7b44ec702fda43b51487681486943',6960110822446015759,'92d3d5190c09a48280915b8a516d73db1094d988b651da49c832de036f830151','given',1.79537191661947774894e+09,15,2,15,'{"run":"sim","plan":{"name":"sim","task":{"learner":"simulation:learner","learner_version":null,"epochs":null,"steps":null,"batch_size":8,"learning_rate":0.1,"mu":0.0,"max_grad_norm":null,"time_budget_s":null,"codec":"float32@1","averaged":["*"],"seed":0,"score_held_out":false},"cohort":{"select":3,"goal":2,"quorum":0.5,"pool":null,"select_s":60.0,"collect_s":600.0,"choose":"uniform","min_examples":1},"aggregation":{"rule":"mean","weighting":"examples","weight_cap":10000,"partial":"full","clip_norm":null,"server_optimizer":"average","server_learning_rate":1.0},"finish":{"rounds":4,"metric":null,"source":"evaluator","better":"higher","target":null,"patience":null,"min_delta":0.0},"retention":{"rounds":0}},"checkpoint":"940f81bf9247d044de7b9a1475d4302d9be11fe552640b0b09941998b368ede8","version":2,"status":"running","reason":"","ending":null,"phase":"selecting","round":3,"attempt":0,"opened_at":1795371920.7194777,"collecting_at":null,"deadline":1795371980.7194777,"waiting":0,"pool":null,"members":{},"abandoned_in_a_row":0,"kind":"federated","because":"","planned":false,"away_since":null,"fleet_first":false,"back_with":null,"failures":0,"failure":"","rests_until":null,"fence":0,"lease":null,"give_up_at":null,"secure":null,"excluded":{},"spent":[],"barred":{},"exhausted":"","advancing":"","leftovers":{},"best":null,"unimproved":0,"last_scored":-1}');
CREATE TABLE waiting (
	device TEXT NOT NULL, 
	examples BIGINT NOT NULL, 
	offer TEXT NOT NULL, 
	since DOUBLE NOT NULL, 
	expires DOUBLE NOT NULL, 
	CONSTRAINT pk_waiting PRIMARY KEY (device), 
	CONSTRAINT fk_waiting_device FOREIGN KEY(device) REFERENCES devices (device)
);
CREATE TABLE workers (
	worker TEXT NOT NULL, 
	token_hash TEXT NOT NULL, 
	label TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	last_seen_at DOUBLE, 
	revoked_at DOUBLE, 
	CONSTRAINT pk_workers PRIMARY KEY (worker), 
	CONSTRAINT uq_workers_token_hash UNIQUE (token_hash)
);
CREATE INDEX ix_devices_token_hash ON devices (token_hash);
CREATE INDEX ix_checkpoints_digest ON checkpoints (digest);
CREATE UNIQUE INDEX uq_checkpoints_first ON checkpoints (run) WHERE parent_version IS NULL;
CREATE INDEX ix_claims_run_round ON claims (run, round);
CREATE INDEX ix_refusals_run_round ON refusals (run, round);
CREATE INDEX ix_waiting_expires ON waiting (expires);
CREATE INDEX ix_audit_run ON audit (run);
COMMIT;
