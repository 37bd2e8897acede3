"""The protocol of silos and server: join, agree, request, answer; and a silo's policy."""
