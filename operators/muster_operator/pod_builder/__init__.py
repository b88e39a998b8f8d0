"""What is written to the API server, as plain values: pods, Services, patches of statuses, Events. Pure."""
