/* HyperPod's srun takes --auto-resume=0|1; stock Slurm does not know it. This SPANK plugin takes the option and writes
 * the wish into the job's comment, where the rehearsal's agent (SlurmStandIn.auto_resume) finds it. */
#include <stdint.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(auto_resume, 1)

static int wanted = 0;

static int take_option(int value, const char *argument, int remote)
{
    (void)value;
    (void)remote;
    if (argument == NULL || (strcmp(argument, "0") != 0 && strcmp(argument, "1") != 0)) {
        slurm_error("--auto-resume takes 0 or 1, not '%s'", argument ? argument : "");
        return -1;
    }
    wanted = argument[0] == '1';
    return 0;
}

static struct spank_option option = {
    "auto-resume", "0|1", "HyperPod: run the job again after a faulty node has been replaced", 1, 0, take_option,
};

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    switch (spank_context()) {
    case S_CTX_LOCAL:
    case S_CTX_ALLOCATOR:
    case S_CTX_REMOTE:
        return spank_option_register(spank, &option);
    default:
        return ESPANK_SUCCESS;
    }
}

/* In srun, when the job's id is known and no task has started. */
int slurm_spank_local_user_init(spank_t spank, int argc, char **argv)
{
    job_desc_msg_t job;
    (void)argc;
    (void)argv;
    if (!wanted)
        return ESPANK_SUCCESS;
    slurm_init_job_desc_msg(&job);
    if (spank_get_item(spank, S_JOB_ID, &job.job_id) != ESPANK_SUCCESS)
        return ESPANK_ERROR;
    job.comment = "auto-resume=1";
    if (slurm_update_job(&job) != SLURM_SUCCESS) {
        slurm_error("--auto-resume: job %u could not be marked", job.job_id);
        return ESPANK_ERROR;
    }
    slurm_info("[Auto Resume] Info: JobID: %u will be resumed after a hardware fault", job.job_id);
    return ESPANK_SUCCESS;
}
