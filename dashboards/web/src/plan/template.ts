// The plan with which a form begins that begins with none.
export const TEMPLATE = `name = "my-run"

[task]                     # the device's part
learner = "quorate:mnist-mlp"
epochs = 1
batch_size = 32
learning_rate = 0.1

[cohort]                   # select 4, close at 3
select = 4
goal = 3
quorum = 0.6               # of the goal: what still makes a round when the time is up

[finish]
rounds = 10
`;
