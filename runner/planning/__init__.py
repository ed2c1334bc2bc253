"""What a job will need is known before it runs: model profile, hardware budget, plan, refusal, remedies."""
