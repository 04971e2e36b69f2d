"""Weight versions over the bus: published, stored, found, fetched and verified.

catalog         the versions that a run's logs hold
file_server     an HTTP server for the files of one folder, in threads of the trainer's process
follower        a replica's way from the version that it has to the head
full_folder     full versions as files of one folder, which may be shared between machines
full_payload    a full version as bytes
full_store      where a trainer puts full versions besides the log
payload_reader  reads the payload of a version from wherever its manifest says that it is, verified part by part
publisher       a trainer's versions, delta and full, until the head names them
range_reader    reads ranges of a full's payload from one place
rank_share      one rank's share of a version
update_plan     the cheapest way from what a replica has to the head
"""
