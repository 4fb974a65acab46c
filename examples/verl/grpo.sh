#!/usr/bin/env bash
# GRPO in verl 0.9 with noise in the actor's updates: 5 % at the first step, 0.1 % at the last.
# Where verl runs: pip install noisescope. Then: MODEL=... TRAIN=... VAL=... examples/verl/grpo.sh [OVERRIDE...]
set -euo pipefail

MODEL=${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}
TRAIN=${TRAIN:-$HOME/data/gsm8k/train.parquet}
VAL=${VAL:-$HOME/data/gsm8k/test.parquet}
GPUS=${GPUS:-8}
# Workers of a Ray cluster do not see this shell: what they are to know goes through runtime_env, as texts.
WORKERS=+ray_kwargs.ray_init.runtime_env.env_vars

exec python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_files="$TRAIN" \
  data.val_files="$VAL" \
  data.train_batch_size=256 \
  data.max_prompt_length=512 \
  data.max_response_length=1024 \
  actor_rollout_ref.model.path="$MODEL" \
  actor_rollout_ref.actor.strategy=fsdp2 \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.actor.use_kl_loss=True \
  actor_rollout_ref.actor.kl_loss_coef=0.001 \
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
  trainer.logger='[console]' \
  trainer.project_name=noisescope \
  trainer.experiment_name=grpo-decay \
  trainer.n_gpus_per_node="$GPUS" \
  trainer.nnodes=1 \
  trainer.total_epochs=1 \
  "$WORKERS.NOISESCOPE_ENABLED='1'" \
  "$WORKERS.NOISESCOPE_SCHEDULE='exponential:0.05:0.001'" \
  "$WORKERS.NOISESCOPE_OPERATORS='linear,rms_norm'" \
  "$WORKERS.NOISESCOPE_SEED='0'" \
  "$@"
