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
INSERT INTO "checkpoints" VALUES('marks',0,'936047a9b9a93d71d7ad05197f9dad08b13027aabb0e8449d0ff8a3b2304e18b',NULL,NULL,'test',160,NULL,1000000.0);
INSERT INTO "checkpoints" VALUES('marks',1,'1daa2b6622907ffe8c20a26e768c4e9b0dcdc2c8c8f6cd6390b75884c560476a',0,1,'round 1',160,NULL,1000000.0);
INSERT INTO "checkpoints" VALUES('marks',2,'74c80bacd9afb21b3ef358a534cd39c3499b679e77485da67900578c7933f509',1,3,'round 3, in the datacenter by w67a486ea121fc2fe',160,NULL,1000072.0);
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
INSERT INTO "claims" VALUES('d20adcf3c5dfbbca7','marks',5,0,1000132.0);
INSERT INTO "claims" VALUES('d93e2e88d6d83ffc0','marks',5,0,1000132.0);
INSERT INTO "claims" VALUES('dcce270a575ecbe43','marks',5,0,1000132.0);
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
INSERT INTO "contributions" VALUES('marks',1,'d7275dd48cf47f8db','f9628d8c72c4fef8ad6d3681c7877c127fe6e339a8e337bf2b1156df98520980',10,1);
INSERT INTO "contributions" VALUES('marks',1,'d93e2e88d6d83ffc0','3b6c68af5835d6a0e336baa0df59d5217e7c6d0e6750261b0e5aa87072176509',10,1);
INSERT INTO "contributions" VALUES('marks',1,'dcce270a575ecbe43','64080006741e630c7a4895aefe775cb546f6dda4bc0ba1765fc6536b641725da',10,1);
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
INSERT INTO "devices" VALUES('d7275dd48cf47f8db','8dd39dd9add1a3233295b90aafdee99799a5bd7b0eab2e80c3d498169f840b00','e662037a42dd1be4b875fdeebcfbe55f505d9c01fe5cee70f2528eda3ddae4ca','',1000,1000000.0,1000072.0);
INSERT INTO "devices" VALUES('d7674d1469087860a','83eb00ca45b3f414251eff31cb75896e62192ae4d97e3e47f0e7c44a215bb4dd','9a7e26dd3e8dca5dd138b27bd92ad2321f0e9a775f652fcd7270fcaeb1cd019a','',1000,1000000.0,1000072.0);
INSERT INTO "devices" VALUES('d93e2e88d6d83ffc0','5c1f51d960218b5131f1eb5895492155e750aa403c882662a7a808ec2ba173cb','ec1b6a580bbc0112df2a592e0896836958f8c8ba92fa14ab3002165ef8ce444b','',1000,1000000.0,1000072.0);
INSERT INTO "devices" VALUES('dcce270a575ecbe43','6e9dbf300792138e6ca070624a2dff288e45b1c8aabea9a8d556758c0d85deb3','428f1422e6eade4c44620e588f490fa32cbb619b3b1ef3b8442427b67119b8a2','',1000,1000000.0,1000072.0);
INSERT INTO "devices" VALUES('d20adcf3c5dfbbca7','a3397ee39f7371ea1a08189d02eecc42d99f3a67f5db3c1dacdd763306d4d50f','b9f7945d4596ee3ba5079c80320edb67155faa6b05cc91f4d146030f1ca6eb1f','',1000,1000000.0,1000072.0);
INSERT INTO "devices" VALUES('dda257a21184bd3ea','b688499f7b2d8a02ab0c13b834f5344fd408ab98a790d9cbeb4f52d97e49fbf5','6fd14b5a1afb1b1ff4073ed12535cbb1ce478785b770727aa6c6b5abfd84d489','',1000,1000000.0,1000072.0);
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
INSERT INTO "events" VALUES('marks',1,1000000.0,'Created','{}');
INSERT INTO "events" VALUES('marks',2,1000000.0,'Drawn','{"round":1,"cohort":[["d20adcf3c5dfbbca7",10],["d7275dd48cf47f8db",10],["d93e2e88d6d83ffc0",10],["dcce270a575ecbe43",10]],"waiting":6,"pool":"6af2fed3fc54bf512095225b92d1d28a83892cfd18ac34b6e46d76df7a7084e1","others":"","unspendable":0}');
INSERT INTO "events" VALUES('marks',3,1000000.0,'Reported','{"round":1,"attempt":0,"device":"d7275dd48cf47f8db","digest":"f9628d8c72c4fef8ad6d3681c7877c127fe6e339a8e337bf2b1156df98520980","bytes":408,"examples":10,"steps":4,"steps_planned":4,"complete":true,"metrics":{"loss":0.5},"held_out":{},"held_out_examples":0,"seconds":[0.0,0.0,0.0]}');
INSERT INTO "events" VALUES('marks',4,1000000.0,'Reported','{"round":1,"attempt":0,"device":"d93e2e88d6d83ffc0","digest":"3b6c68af5835d6a0e336baa0df59d5217e7c6d0e6750261b0e5aa87072176509","bytes":408,"examples":10,"steps":4,"steps_planned":4,"complete":true,"metrics":{"loss":0.5},"held_out":{},"held_out_examples":0,"seconds":[0.0,0.0,0.0]}');
INSERT INTO "events" VALUES('marks',5,1000000.0,'Reported','{"round":1,"attempt":0,"device":"dcce270a575ecbe43","digest":"64080006741e630c7a4895aefe775cb546f6dda4bc0ba1765fc6536b641725da","bytes":408,"examples":10,"steps":4,"steps_planned":4,"complete":true,"metrics":{"loss":0.5},"held_out":{},"held_out_examples":0,"seconds":[0.0,0.0,0.0]}');
INSERT INTO "events" VALUES('marks',6,1000000.0,'Committed','{"round":1,"digest":"1daa2b6622907ffe8c20a26e768c4e9b0dcdc2c8c8f6cd6390b75884c560476a","bytes":160,"optimizer":null}');
INSERT INTO "events" VALUES('marks',7,1000011.0,'Drawn','{"round":2,"cohort":[["d7674d1469087860a",10],["dda257a21184bd3ea",10]],"waiting":2,"pool":"f58ed44cd16de94472f9ec1c265a8c061e7a87ade0ed488b75923a4f583767f1","others":"","unspendable":0}');
INSERT INTO "events" VALUES('marks',8,1000072.0,'Tick','{}');
INSERT INTO "events" VALUES('marks',9,1000072.0,'Leased','{"round":3,"attempt":1,"fence":1,"worker":"w67a486ea121fc2fe","instance":"i1","waiting":0,"installation":""}');
INSERT INTO "events" VALUES('marks',10,1000072.0,'Delivered','{"round":3,"attempt":1,"fence":1,"worker":"w67a486ea121fc2fe","digest":"74c80bacd9afb21b3ef358a534cd39c3499b679e77485da67900578c7933f509","bytes":160,"steps":100,"examples":25600,"metrics":{"loss":0.5},"optimizer":null,"waiting":0}');
INSERT INTO "events" VALUES('marks',11,1000072.0,'FleetReturned','{"round":4,"waiting":6}');
INSERT INTO "events" VALUES('marks',12,1000072.0,'Drawn','{"round":5,"cohort":[["d20adcf3c5dfbbca7",10],["d7275dd48cf47f8db",10],["d93e2e88d6d83ffc0",10],["dcce270a575ecbe43",10]],"waiting":6,"pool":"6af2fed3fc54bf512095225b92d1d28a83892cfd18ac34b6e46d76df7a7084e1","others":"","unspendable":0}');
INSERT INTO "events" VALUES('marks',13,1000077.0,'Reported','{"round":5,"attempt":0,"device":"d7275dd48cf47f8db","digest":"d6ffcebb21b268d2814f98c24d128e9b4b5d13b8279709617ac59ecc4866fad7","bytes":408,"examples":10,"steps":4,"steps_planned":4,"complete":true,"metrics":{"loss":0.5},"held_out":{},"held_out_examples":0,"seconds":[0.0,0.0,0.0]}');
INSERT INTO "events" VALUES('marks',14,1000077.0,'Started','{"round":5,"attempt":0,"device":"d93e2e88d6d83ffc0"}');
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
INSERT INTO "rounds" VALUES('marks',1,0,'federated','committed','',1000000.0,1000000.0,1000000.0,'{"funnel":{"waiting":6,"selected":4,"training":3,"reported":3,"withdrawn":0},"bytes_in":1224,"weight":30,"partial":0,"metrics":{"loss":0.5},"version":1,"digest":"1daa2b6622907ffe8c20a26e768c4e9b0dcdc2c8c8f6cd6390b75884c560476a","pool":"6af2fed3fc54bf512095225b92d1d28a83892cfd18ac34b6e46d76df7a7084e1","cohort":["d20adcf3c5dfbbca7","d7275dd48cf47f8db","d93e2e88d6d83ffc0","dcce270a575ecbe43"]}');
INSERT INTO "rounds" VALUES('marks',2,0,'federated','abandoned','0 of 2 devices reported by the deadline; the quorum is 2',1000000.0,1000011.0,1000072.0,'{"funnel":{"waiting":2,"selected":2,"training":0,"reported":0,"withdrawn":0},"bytes_in":0,"weight":0,"partial":0,"metrics":{},"version":null,"digest":null,"pool":"f58ed44cd16de94472f9ec1c265a8c061e7a87ade0ed488b75923a4f583767f1","cohort":["d7674d1469087860a","dda257a21184bd3ea"]}');
INSERT INTO "rounds" VALUES('marks',3,1,'datacenter','committed','',1000072.0,1000072.0,1000072.0,'{"funnel":{"waiting":0,"selected":0,"training":0,"reported":0,"withdrawn":0},"bytes_in":160,"weight":0,"partial":0,"metrics":{"loss":0.5},"because":"1 federated round in a row had to be abandoned","lease":{"worker":"w67a486ea121fc2fe","attempt":1,"fence":1,"since_at":1000072.0,"seen_at":1000072.0,"step":100,"metrics":{"loss":0.5}},"version":2,"digest":"74c80bacd9afb21b3ef358a534cd39c3499b679e77485da67900578c7933f509","pool":null,"cohort":[]}');
INSERT INTO "rounds" VALUES('marks',4,0,'datacenter','abandoned','6 eligible devices wait, and no worker has the round',1000072.0,NULL,1000072.0,'{"funnel":{"waiting":6,"selected":0,"training":0,"reported":0,"withdrawn":0},"bytes_in":0,"weight":0,"partial":0,"metrics":{},"because":"too few devices wait: the run fell back to the datacenter in round 3","version":null,"digest":null,"pool":null,"cohort":[]}');
INSERT INTO "rounds" VALUES('marks',5,0,'federated','open','',1000072.0,1000072.0,NULL,'{"funnel":{"waiting":6,"selected":4,"training":0,"reported":0,"withdrawn":0},"bytes_in":0,"weight":0,"partial":0,"metrics":{},"version":null,"digest":null,"pool":"6af2fed3fc54bf512095225b92d1d28a83892cfd18ac34b6e46d76df7a7084e1","cohort":["d20adcf3c5dfbbca7","d7275dd48cf47f8db","d93e2e88d6d83ffc0","dcce270a575ecbe43"]}');
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
INSERT INTO "runs" VALUES('marks','marks','{"name":"marks","task":{"learner":"tests:marks","learner_version":null,"epochs":null,"steps":null,"batch_size":32,"learning_rate":0.1,"mu":0.0,"max_grad_norm":null,"time_budget_s":null,"codec":"float32@1","averaged":["*"],"seed":0,"score_held_out":false},"cohort":{"select":4,"goal":3,"quorum":0.6,"pool":null,"select_s":10.0,"collect_s":60.0,"choose":"uniform","min_examples":1},"aggregation":{"rule":"mean","weighting":"examples","weight_cap":10000,"partial":"full","clip_norm":null,"server_optimizer":"average","server_learning_rate":1.0},"finish":{"rounds":5,"metric":null,"source":"evaluator","better":"higher","target":null,"patience":null,"min_delta":0.0},"retention":{"rounds":5},"datacenter":{"data":"proxy","steps":100,"batch_size":256,"accumulate":1,"nproc":2,"learning_rate":0.1,"optimizer":"sgd","momentum":0.9,"weight_decay":0.0,"warmup_steps":0,"precision":"float32","patience":1,"every":null,"return_devices":null,"wait_s":60.0,"lease_s":40.0,"max_s":300.0}}','124c7f4012684224196d430087e10313409f3c83361a26c002fc66a27eddae10',7359922504274510519,'936047a9b9a93d71d7ad05197f9dad08b13027aabb0e8449d0ff8a3b2304e18b','test',1000000.0,14,1,11,'{"run":"marks","plan":{"name":"marks","task":{"learner":"tests:marks","learner_version":null,"epochs":null,"steps":null,"batch_size":32,"learning_rate":0.1,"mu":0.0,"max_grad_norm":null,"time_budget_s":null,"codec":"float32@1","averaged":["*"],"seed":0,"score_held_out":false},"cohort":{"select":4,"goal":3,"quorum":0.6,"pool":null,"select_s":10.0,"collect_s":60.0,"choose":"uniform","min_examples":1},"aggregation":{"rule":"mean","weighting":"examples","weight_cap":10000,"partial":"full","clip_norm":null,"server_optimizer":"average","server_learning_rate":1.0},"finish":{"rounds":5,"metric":null,"source":"evaluator","better":"higher","target":null,"patience":null,"min_delta":0.0},"retention":{"rounds":5},"datacenter":{"data":"proxy","steps":100,"batch_size":256,"accumulate":1,"nproc":2,"learning_rate":0.1,"optimizer":"sgd","momentum":0.9,"weight_decay":0.0,"warmup_steps":0,"precision":"float32","patience":1,"every":null,"return_devices":null,"wait_s":60.0,"lease_s":40.0,"max_s":300.0}},"checkpoint":"74c80bacd9afb21b3ef358a534cd39c3499b679e77485da67900578c7933f509","version":2,"status":"running","reason":"","ending":null,"phase":"selecting","round":5,"attempt":0,"opened_at":1000072.0,"collecting_at":null,"deadline":1000082.0,"waiting":0,"pool":null,"members":{},"abandoned_in_a_row":0,"kind":"federated","because":"","planned":false,"away_since":null,"fleet_first":true,"back_with":null,"failures":0,"failure":"","rests_until":null,"fence":1,"lease":null,"give_up_at":null,"secure":null,"excluded":{},"spent":[],"barred":{},"exhausted":"","advancing":"","leftovers":{},"best":null,"unimproved":0,"last_scored":-1}');
CREATE TABLE waiting (
	device TEXT NOT NULL, 
	examples BIGINT NOT NULL, 
	offer TEXT NOT NULL, 
	since DOUBLE NOT NULL, 
	expires DOUBLE NOT NULL, 
	CONSTRAINT pk_waiting PRIMARY KEY (device), 
	CONSTRAINT fk_waiting_device FOREIGN KEY(device) REFERENCES devices (device)
);
INSERT INTO "waiting" VALUES('d7674d1469087860a',10,'{"learners":{"tests:marks":"1"},"policy":{"learners":null,"max_epochs":null,"secure_only":false}}',1000072.0,1000157.0);
INSERT INTO "waiting" VALUES('dda257a21184bd3ea',10,'{"learners":{"tests:marks":"1"},"policy":{"learners":null,"max_epochs":null,"secure_only":false}}',1000072.0,1000157.0);
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
INSERT INTO "workers" VALUES('w67a486ea121fc2fe','93ea1a54860679726952ef6f3717637ce92f267bd9e774e81704d23f0381279a','cluster',1000072.0,1000072.0,NULL);
CREATE INDEX ix_devices_token_hash ON devices (token_hash);
CREATE INDEX ix_checkpoints_digest ON checkpoints (digest);
CREATE UNIQUE INDEX uq_checkpoints_first ON checkpoints (run) WHERE parent_version IS NULL;
CREATE INDEX ix_claims_run_round ON claims (run, round);
CREATE INDEX ix_refusals_run_round ON refusals (run, round);
CREATE INDEX ix_waiting_expires ON waiting (expires);
CREATE INDEX ix_audit_run ON audit (run);
COMMIT;
